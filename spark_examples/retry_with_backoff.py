"""Retries refused payments with growing delays through retry topics, and finally sends them to a dead letter topic.

    python -m spark_examples.retry_with_backoff [--bootstrap 127.0.0.1:9092] [--command-config FILE] [--workdir DIR]

One stage reads the payments, and one stage reads each retry topic. A stage waits until a payment is due, tries it, and
forwards it: to `paid`, to the next retry topic, or after the last retry topic to `dead`. Headers contain the number of
attempts (`retry.attempts`), the due time (`retry.due`, in ms), and the source (`retry.topic`, `.partition`, `.offset`).

- A read_committed consumer sees each payment once, in `paid` or in `dead` (`forwarding.py`). An attempt may be repeated
  after a failure, so the payment system must accept that.
- No payment is tried before it is due, and the delays grow.
- Payments of an account with the same number of attempts keep their order. Other payments may overtake retried ones.
"""

import json
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from kpybroker.spark import QUICK_JVM, Cluster, checkpoint, session
from spark_examples.feeding import Record, create_topics, send
from spark_examples.forwarding import Forwarder
from spark_examples.running import command_line

SEED = 2013
COUNT = 2_000
ACCOUNTS = 50
PARTITIONS = 3
DELAYS_MS = [500, 1_000, 2_000]
MAX_BATCH = "700"
NEW_EACH_TIME = ["retry.attempts", "retry.due"]


class Topics(NamedTuple):
    stages: list[str]
    """The sources of the stages: the topic of new payments, then the retry topics."""
    paid: str
    dead: str


def main(cluster: Cluster, workdir: Path) -> Topics:
    """Send the payments, and run every stage until no payment is left. Returns the topics."""
    spark = session(cluster, settings=QUICK_JVM)
    run = uuid.uuid4().hex[:6]
    stages = [f"payments-{run}", *(f"payments-retry-{number}-{run}" for number, _ in enumerate(DELAYS_MS, 1))]
    topics = Topics(stages, f"payments-paid-{run}", f"payments-dead-{run}")
    create_topics(cluster, *topics.stages, topics.paid, topics.dead, partitions=PARTITIONS)
    send(cluster, topics.stages[0], payments())
    for attempts in range(len(topics.stages)):  # with a continuous input, all stages run all the time
        run_stage(spark, cluster, topics, attempts, workdir)
    return topics


def run_stage(spark: SparkSession, cluster: Cluster, topics: Topics, attempts: int, workdir: Path) -> None:
    """Process the payments with `attempts` earlier attempts."""
    source = topics.stages[attempts]
    kafka = {**cluster.spark_options(), "kafka.isolation.level": "read_committed", "includeHeaders": "true"}
    more = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": MAX_BATCH}
    forwarder = Forwarder(cluster, source, PARTITIONS, group=f"{source}-settled")

    def settle(batch: DataFrame, _: int) -> None:
        due_ms = batch.agg(F.max(header("retry.due").cast("long"))).first()[0]
        time.sleep(max(0, (due_ms or 0) / 1000 - time.time()))  # a topic has one delay: records are due in order
        tried = batch.withColumn("is_refused", is_refused(attempts)).orderBy("partition", "offset").collect()
        settled = forwarder.forward(tried, lambda row: onward(row, topics, attempts))
        print(f"{source}: {len(settled)} tried, {sum(row.is_refused for row in settled)} refused")

    with closing(forwarder):
        query = (
            spark.readStream.format("kafka")
            .options(**kafka, **more)
            .load()
            .writeStream.foreachBatch(settle)
            .option("checkpointLocation", checkpoint(workdir / f"stage-{attempts}", cluster, source))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def onward(row: Row, topics: Topics, attempts: int) -> tuple[str, Record]:
    """The next topic of a payment, and its record there."""
    headers = [(name, value) for name, value in row.headers or () if name not in NEW_EACH_TIME]
    if attempts == 0:
        headers += [(f"retry.{name}", str(row[name]).encode()) for name in ("topic", "partition", "offset")]
    headers.append(("retry.attempts", str(attempts + 1).encode()))
    topic = [*topics.stages, topics.dead][attempts + 1] if row.is_refused else topics.paid
    if topic in topics.stages:
        headers.append(("retry.due", str(int(time.time() * 1000) + DELAYS_MS[attempts]).encode()))
    return topic, Record(row.value, row.key, headers=headers)


def header(name: str) -> Column:
    """A record's header as text; null if there is no header with this name."""
    return F.get(F.filter("headers", lambda each: each["key"] == name), F.lit(0))["value"].cast("string")


def is_refused(attempts: int) -> Column:
    """Whether the bank refuses a payment, simulated by a field with the number of refusals. A UDF that calls the bank
    can replace it."""
    refusals = F.from_json(F.col("value").cast("string"), "refusals int")["refusals"]
    return F.coalesce(refusals > attempts, F.lit(True))


def payments() -> Iterator[Record]:
    """COUNT records, the same in every run. One in ten is refused at least once, and some of these are always
    refused."""
    chance = random.Random(SEED)
    for number in range(COUNT):
        refusals = chance.choice([1, 1, 1, 2, 2, 3, 99]) if chance.random() < 0.1 else 0
        value = json.dumps({"id": number, "cents": chance.randint(1, 99_999), "refusals": refusals})
        yield Record(value, key=f"account {chance.randrange(ACCOUNTS)}", headers=[("trace", str(number).encode())])


if __name__ == "__main__":
    command_line(main, __doc__)
