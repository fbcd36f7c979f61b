"""Retries refused payments with growing delays, and finally sends them to a dead letter topic.

    python -m spark_examples.retry_with_backoff [--bootstrap 127.0.0.1:9092] [--command-config FILE] [--workdir DIR]

The stream tries each payment, and forwards it: to `paid`; or if it was refused, to its own topic again, with the header
`deliver-after`, so that the broker delivers it after this delay (docs/scheduled-delivery.md); or, after the last delay,
to `dead`. The headers for attempts, source and error are those of docs/retries.md, so that `kpybroker dlq redrive`
sends dead letters home.

- A read_committed consumer sees each payment once, in `paid` or in `dead` (`forwarding.py`). An attempt may be repeated
  after a failure, so the payment system must accept that.
- No payment is tried again before its delay has passed, except on Apache Kafka, which has no scheduled delivery: there
  it is tried again at once.
- Payments of an account with the same number of attempts keep their order. Other payments may overtake retried ones.
"""

import json
import random
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from kpybroker.spark import QUICK_JVM, Cluster, checkpoint, session
from spark_examples.feeding import Record, create_topics, send
from spark_examples.forwarding import Forwarder, plain
from spark_examples.running import command_line

SEED = 2013
COUNT = 2_000
ACCOUNTS = 50
PARTITIONS = 3
DELAYS_MS = [500, 1_000, 2_000]
MAX_BATCH = "700"
SCHEDULED = {"kpybroker.delivery.scheduled": "true"}
DLQ = "__dlq.errors."
ATTEMPTS = f"{DLQ}delivery.count"


class Topics(NamedTuple):
    payments: str
    paid: str
    dead: str


def main(cluster: Cluster, workdir: Path) -> Topics:
    """Send the payments, and run the stream until no payment is left. Returns the topics."""
    spark = session(cluster, settings=QUICK_JVM)
    run = uuid.uuid4().hex[:6]
    topics = Topics(f"payments-{run}", f"payments-paid-{run}", f"payments-dead-{run}")
    create_topics(cluster, topics.paid, topics.dead, partitions=PARTITIONS)
    try:
        create_topics(cluster, topics.payments, partitions=PARTITIONS, settings=SCHEDULED)
    except KafkaException as refusal:
        if refusal.args[0].code() != KafkaError.INVALID_CONFIG:
            raise
        print("this broker has no scheduled delivery: payments are tried again at once")
        create_topics(cluster, topics.payments, partitions=PARTITIONS)
    send(cluster, topics.payments, payments())
    left = COUNT
    while left:  # with a continuous input, one stream runs all the time
        left -= run_stream(spark, cluster, topics, workdir)
    return topics


def run_stream(spark: SparkSession, cluster: Cluster, topics: Topics, workdir: Path) -> int:
    """Try the payments that are there now. Returns the number of those that are paid or dead."""
    kafka = {**cluster.spark_options(), "kafka.isolation.level": "read_committed", "includeHeaders": "true"}
    more = {"subscribe": topics.payments, "startingOffsets": "earliest", "maxOffsetsPerTrigger": MAX_BATCH}
    forwarder = Forwarder(cluster, topics.payments, PARTITIONS, group=f"{topics.payments}-settled")
    settled = []

    def settle(batch: DataFrame, _: int) -> None:
        tried = batch.withColumn("is_refused", is_refused()).orderBy("partition", "offset").collect()
        rows = forwarder.forward(tried, lambda row: onward(row, topics))
        refused = [row for row in rows if row.is_refused]
        settled.append(len(rows) - sum(attempts_of(row) <= len(DELAYS_MS) for row in refused))
        print(f"{len(rows)} tried, {len(refused)} refused")

    with closing(forwarder):
        query = (
            spark.readStream.format("kafka")
            .options(**kafka, **more)
            .load()
            .writeStream.foreachBatch(settle)
            .option("checkpointLocation", checkpoint(workdir / "payments", cluster, topics.payments))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return sum(settled)


def attempts_of(row: Row) -> int:
    """The number of attempts, with this one."""
    return int({name: plain(value) for name, value in row.headers or ()}.get(ATTEMPTS, 0)) + 1


def onward(row: Row, topics: Topics) -> tuple[str, Record]:
    """The next topic of a payment, and its record there."""
    headers = [(name, value) for name, value in row.headers or () if not name.startswith((DLQ, "deliver-"))]
    if not row.is_refused:
        return topics.paid, Record(row.value, row.key, headers=headers)
    attempts = attempts_of(row)
    source = [(name, value) for name, value in row.headers or () if name.startswith(DLQ) and name != ATTEMPTS]
    if attempts == 1:
        source = [(f"{DLQ}{name}", str(row[name]).encode()) for name in ("topic", "partition", "offset")]
        source.append((f"{DLQ}message", b"the bank refuses the payment"))
    headers += [*source, (ATTEMPTS, b"%d" % attempts)]
    if attempts > len(DELAYS_MS):
        return topics.dead, Record(row.value, row.key, headers=headers)
    headers.append(("deliver-after", b"%d" % DELAYS_MS[attempts - 1]))
    return topics.payments, Record(row.value, row.key, headers=headers)


def is_refused() -> Column:
    """Whether the bank refuses a payment, simulated by a field with the number of refusals. A UDF that calls the bank
    can replace it."""
    refusals = F.from_json(F.col("value").cast("string"), "refusals int")["refusals"]
    count = F.get(F.filter("headers", lambda each: each["key"] == ATTEMPTS), F.lit(0))["value"]
    attempts = F.coalesce(count.cast("string").cast("int"), F.lit(0))
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
