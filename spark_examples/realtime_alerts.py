"""Sends alerts within milliseconds of a payment, with Spark's real-time mode, which processes each record as it
arrives.

    python -m spark_examples.realtime_alerts [--bootstrap 127.0.0.1:9092] [--command-config FILE] [--workdir DIR]

Needs PySpark 4.1 or later. The trigger interval is not the delay of a record but the interval of checkpoints: a batch
lasts that long, and during a batch one task per partition reads and needs a core. An unfinished batch is repeated after
a stop or failure, and its alerts are written again; the payment's id, which is their key, identifies such duplicates.
Payments are sent at a constant rate. The example measures the time from a payment until a consumer has its alert.
"""

import json
import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyspark
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses
from pyspark.sql.streaming import StreamingQuery

from kpybroker.errors import ConfigError
from kpybroker.spark import QUICK_JVM, Cluster, checkpoint, session
from kpybroker.spark.prerequisites import spark_version
from spark_examples.feeding import create_topics
from spark_examples.running import command_line

OLDEST_SPARK = (4, 1, 0)
SEED = 2013
COUNT = 2_000
EACH_SECOND = 200
PARTITIONS = 2
LIMIT_CENTS = 100_000
CHECKPOINT_EVERY = "5 minutes"
PATIENCE_S = 60
PAYMENT = "id string, cents long"


class Payment(NamedTuple):
    id: str
    cents: int


def main(cluster: Cluster, workdir: Path) -> pd.DataFrame:
    """Start the stream, send payments, and wait for the alerts. Returns a row (id, ms) for each alert, in order of
    arrival."""
    if spark_version() < OLDEST_SPARK:
        found = pyspark.__version__
        raise ConfigError(f"real-time mode needs PySpark 4.1 or later, this is {found}: pip install --upgrade pyspark")
    spark = session(cluster, cores=PARTITIONS, settings=QUICK_JVM)
    run = uuid.uuid4().hex[:6]
    paid, alerts = f"payments-{run}", f"alerts-{run}"
    create_topics(cluster, paid, alerts, partitions=PARTITIONS)
    query = watch(spark, cluster, paid, alerts, workdir / "checkpoint")
    customer = Customer(cluster, paid, alerts, query)
    for number in range(PARTITIONS):
        customer.pay(Payment(f"first {number}", LIMIT_CENTS + 1), number)
    customer.listen(PATIENCE_S, PARTITIONS)  # by then both tasks run, and the clients are connected
    started = time.perf_counter()
    for number, payment in enumerate(payments(), 1):
        customer.pay(payment)
        customer.listen(started + number / EACH_SECOND - time.perf_counter())
    customer.listen(PATIENCE_S, PARTITIONS + sum(payment.cents > LIMIT_CENTS for payment in payments()))
    spark.sparkContext.setLogLevel("OFF")  # tasks of a stopped batch end with stack traces
    query.stop()
    spark.sparkContext.setLogLevel("WARN")
    found = pd.DataFrame(list(customer.waited_ms.items())[PARTITIONS:], columns=["id", "ms"])
    median, p99, worst = found["ms"].quantile([0.5, 0.99, 1.0])
    print(f"{len(found)} alerts on {COUNT} payments: median {median:.1f}, p99 {p99:.1f}, at most {worst:.1f} ms")
    return found


def watch(spark: SparkSession, cluster: Cluster, paid: str, alerts: str, folder: Path) -> StreamingQuery:
    """Start the stream, which forwards payments above the limit unchanged."""
    kafka = cluster.spark_options()
    records = spark.readStream.format("kafka").options(**kafka, subscribe=paid, startingOffsets="earliest").load()
    payment = F.from_json(F.col("value").cast("string"), PAYMENT)
    return (
        records.where(payment["cents"] > LIMIT_CENTS)
        .select("key", "value")
        .writeStream.format("kafka")
        .options(**kafka, topic=alerts, checkpointLocation=checkpoint(folder, cluster, paid))
        .outputMode("update")
        .trigger(realTime=CHECKPOINT_EVERY)
        .start()
    )


class Customer:
    """Sends payments, and waits for alerts."""

    def __init__(self, cluster: Cluster, paid: str, alerts: str, query: StreamingQuery) -> None:
        self.waited_ms: dict[str, float] = {}
        """Payment id -> latency, in the order of the alerts."""
        self._paid_at: dict[str, float] = {}
        self._topic = paid
        self._query = query
        self._producer = Producer({**cluster.confluent_settings(), "linger.ms": 0})
        self._consumer = Consumer({**cluster.confluent_settings(), "group.id": alerts})
        self._consumer.assign([TopicPartition(alerts, partition, 0) for partition in range(PARTITIONS)])

    def pay(self, payment: Payment, partition: int = -1) -> None:
        self._paid_at[payment.id] = time.perf_counter()
        self._producer.produce(self._topic, json.dumps(payment._asdict()), payment.id, partition)
        self._producer.poll(0)

    def listen(self, seconds: float, count: int | None = None) -> None:
        """Receive alerts for `seconds`, or until there are `count` in total. Fails if `count` is given and not
        reached."""
        if count is not None:
            self._producer.flush(seconds)
        end = time.perf_counter() + seconds
        while (count is None or len(self.waited_ms) < count) and (left := end - time.perf_counter()) > 0:
            message = self._consumer.poll(left if count is None else 1)
            if message is not None and message.error() is None:
                payment = message.key().decode()
                self.waited_ms.setdefault(payment, 1000 * (time.perf_counter() - self._paid_at[payment]))
            elif error := self._query.exception():
                raise error
        if count is not None and len(self.waited_ms) < count:
            raise ConfigError(f"only {len(self.waited_ms)} of {count} alerts have arrived; see Spark's output above")


def payments() -> Iterator[Payment]:
    """COUNT payments, the same in every run. One in ten is above the limit."""
    chance = random.Random(SEED)
    for number in range(COUNT):
        is_high = chance.random() < 0.1
        yield Payment(f"p{number}", chance.randint(LIMIT_CENTS + 1, 10 * LIMIT_CENTS) if is_high else LIMIT_CENTS)


if __name__ == "__main__":
    command_line(main, __doc__)
