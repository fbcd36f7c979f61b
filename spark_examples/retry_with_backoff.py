"""Payments that are refused are tried again, later each time, by way of retry topics; at the end a dead letter topic.

    python -m spark_examples.retry_with_backoff [--bootstrap 127.0.0.1:9092] [--workdir DIR]

One stage reads the payments, and one each retry topic. It waits until what it has read is due, tries, and writes each
payment on: to `paid`, to the next retry topic, or after the last one to `dead`. Headers say how often it was tried
(`retry.attempts`), when it is due (`retry.due`, in ms), and where it is from (`retry.topic`, `.partition`, `.offset`).

- A payment lands in one end, once, for readers of what is committed (`forwarding.py`). What was tried before a failure
  is tried again: whoever is asked must bear that.
- None is tried before it is due, and the delays grow.
- Payments of an account that are tried equally often keep their order. Those that are tried again are overtaken.
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

from kpybroker.spark import QUICK_JVM, checkpoint, session
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
    """Where a payment comes from: first the topic that it is sent to, then the retry topics."""
    paid: str
    dead: str


def main(bootstrap: str, workdir: Path) -> Topics:
    """Feed, and run every stage until it has nothing left; the topics."""
    spark = session(bootstrap, settings=QUICK_JVM)
    run = uuid.uuid4().hex[:6]
    stages = [f"payments-{run}", *(f"payments-retry-{number}-{run}" for number, _ in enumerate(DELAYS_MS, 1))]
    topics = Topics(stages, f"payments-paid-{run}", f"payments-dead-{run}")
    create_topics(bootstrap, *topics.stages, topics.paid, topics.dead, partitions=PARTITIONS)
    send(bootstrap, topics.stages[0], payments())
    for attempts in range(len(topics.stages)):  # where payments come all the time, each runs all the time
        run_stage(spark, bootstrap, topics, attempts, workdir)
    return topics


def run_stage(spark: SparkSession, bootstrap: str, topics: Topics, attempts: int, workdir: Path) -> None:
    """Deal with what was tried `attempts` times before."""
    source = topics.stages[attempts]
    kafka = {"kafka.bootstrap.servers": bootstrap, "kafka.isolation.level": "read_committed", "includeHeaders": "true"}
    more = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": MAX_BATCH}
    forwarder = Forwarder(bootstrap, source, PARTITIONS, group=f"{source}-settled")

    def settle(batch: DataFrame, _: int) -> None:
        due_ms = batch.agg(F.max(header("retry.due").cast("long"))).first()[0]
        time.sleep(max(0, (due_ms or 0) / 1000 - time.time()))  # one topic has one delay: first come is first due
        tried = batch.withColumn("is_refused", is_refused(attempts)).orderBy("partition", "offset").collect()
        settled = forwarder.forward(tried, lambda row: onward(row, topics, attempts))
        print(f"{source}: {len(settled)} tried, {sum(row.is_refused for row in settled)} refused")

    with closing(forwarder):
        query = (
            spark.readStream.format("kafka")
            .options(**kafka, **more)
            .load()
            .writeStream.foreachBatch(settle)
            .option("checkpointLocation", checkpoint(workdir / f"stage-{attempts}", bootstrap, source))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def onward(row: Row, topics: Topics, attempts: int) -> tuple[str, Record]:
    """The topic that is next for a payment, and its record there."""
    headers = [(name, value) for name, value in row.headers or () if name not in NEW_EACH_TIME]
    if attempts == 0:
        headers += [(f"retry.{name}", str(row[name]).encode()) for name in ("topic", "partition", "offset")]
    headers.append(("retry.attempts", str(attempts + 1).encode()))
    topic = [*topics.stages, topics.dead][attempts + 1] if row.is_refused else topics.paid
    if topic in topics.stages:
        headers.append(("retry.due", str(int(time.time() * 1000) + DELAYS_MS[attempts]).encode()))
    return topic, Record(row.value, row.key, headers=headers)


def header(name: str) -> Column:
    """A record's header as text; null where it has none of that name."""
    return F.get(F.filter("headers", lambda each: each["key"] == name), F.lit(0))["value"].cast("string")


def is_refused(attempts: int) -> Column:
    """What the bank says, played by a field that says how often it refuses; a UDF that asks it may stand here."""
    refusals = F.from_json(F.col("value").cast("string"), "refusals int")["refusals"]
    return F.coalesce(refusals > attempts, F.lit(True))


def payments() -> Iterator[Record]:
    """COUNT records, the same every time; of ten, one is refused once or more, some of them for ever."""
    chance = random.Random(SEED)
    for number in range(COUNT):
        refusals = chance.choice([1, 1, 1, 2, 2, 3, 99]) if chance.random() < 0.1 else 0
        value = json.dumps({"id": number, "cents": chance.randint(1, 99_999), "refusals": refusals})
        yield Record(value, key=f"account {chance.randrange(ACCOUNTS)}", headers=[("trace", str(number).encode())])


if __name__ == "__main__":
    command_line(main, __doc__)
