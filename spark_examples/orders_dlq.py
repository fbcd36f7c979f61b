"""Forwards valid orders, and sends all other records unchanged to a dead letter topic, with headers that name their
source.

    python -m spark_examples.orders_dlq [--bootstrap 127.0.0.1:9092] [--command-config FILE] [--workdir DIR]

One stream with one sink: every row names its target topic. A dead letter has the key, value and headers of its source
unchanged, and more headers: those of dead letters of share groups (KIP-1191), and `__dlq.errors.timestamp`. So
`kpybroker dlq list NAME` shows them, and `kpybroker dlq redrive NAME` sends them home. Spark's Kafka sink may repeat
the batch in which it was killed; topic, partition and offset identify such duplicates.
"""

import json
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from kpybroker.spark import QUICK_JVM, Cluster, checkpoint, session
from spark_examples.feeding import Record, create_topics, send
from spark_examples.running import command_line

SEED = 2013
COUNT = 5_000
ORDER = "id long, customer string, cents long, ordered timestamp"
ASIDE = "unreadable"
"""The column where from_json puts values that it cannot parse."""


class Topics(NamedTuple):
    orders: str
    accepted: str
    dead: str


def main(cluster: Cluster, workdir: Path) -> Topics:
    """Send the orders and run the stream once. Returns the topics that it read and wrote."""
    spark = session(cluster, settings=QUICK_JVM)
    run = uuid.uuid4().hex[:6]
    topics = Topics(f"orders-{run}", f"orders-accepted-{run}", f"orders-dead-{run}")
    create_topics(cluster, *topics, partitions=3)
    send(cluster, topics.orders, orders())
    kafka = {**cluster.spark_options(), "includeHeaders": "true"}
    records = (
        spark.readStream.format("kafka")
        .options(**kafka, subscribe=topics.orders, startingOffsets="earliest", maxOffsetsPerTrigger="2000")
        .load()
    )
    query = (
        sorted_out(records, topics)
        .writeStream.format("kafka")
        .options(**kafka, checkpointLocation=checkpoint(workdir / "checkpoint", cluster, topics.orders))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return topics


def sorted_out(records: DataFrame, topics: Topics) -> DataFrame:
    """Kafka records of the source -> Kafka records for the two target topics."""
    text = F.col("value").cast("string")
    parsed = F.from_json(text, f"{ORDER}, {ASIDE} string", {"columnNameOfCorruptRecord": ASIDE})
    judged = records.withColumn("order", parsed).withColumn("reason", reason_against(F.col("order")))
    is_fit = F.col("reason").isNull()
    return judged.select(
        "key",
        "value",
        F.when(is_fit, topics.accepted).otherwise(topics.dead).alias("topic"),
        F.when(is_fit, F.col("headers")).otherwise(F.concat(own_headers(), source_headers())).alias("headers"),
    )


def reason_against(order: Column) -> Column:
    """Why a value is not a valid order; null if it is."""
    return (
        F.when(F.col("value").isNull(), "no value")
        .when(~F.is_valid_utf8("value"), "not UTF-8")
        .when(order[ASIDE].isNotNull(), "not the JSON of an order")
        .when(order["id"].isNull() | order["cents"].isNull() | order["ordered"].isNull(), "a field is missing")
        .when(order["cents"] <= 0, "an amount that is not above 0")
    )


def own_headers() -> Column:
    nothing = F.array().cast("array<struct<key: string, value: binary>>")
    return F.coalesce(F.col("headers"), nothing)


def source_headers() -> Column:
    facts = {
        "__dlq.errors.topic": F.col("topic"),
        "__dlq.errors.partition": F.col("partition"),
        "__dlq.errors.offset": F.col("offset"),
        "__dlq.errors.timestamp": F.unix_millis("timestamp"),
        "__dlq.errors.message": F.col("reason"),
    }
    return F.array(
        *(F.struct(F.lit(k).alias("key"), v.cast("string").cast("binary").alias("value")) for k, v in facts.items())
    )


def orders() -> Iterator[Record]:
    """COUNT records, the same in every run. One in ten is invalid, in one of seven ways."""
    chance = random.Random(SEED)
    for number in range(COUNT):
        order = {"id": number, "customer": f"Zoë {number % 97}", "cents": chance.randint(1, 99_999)}
        order["ordered"] = f"2026-03-{chance.randint(1, 31):02}T12:00:00Z"
        whole = json.dumps(order, ensure_ascii=False).encode()
        broken = [
            None,
            b"",
            whole[: chance.randrange(1, len(whole))],
            whole.replace("ë".encode(), b"\xeb"),
            json.dumps({**order, "cents": "many"}).encode(),
            json.dumps({**order, "cents": -order["cents"]}).encode(),
            json.dumps({name: value for name, value in order.items() if name != "ordered"}).encode(),
        ]
        value = chance.choice(broken) if chance.random() < 0.1 else whole
        trace = [("trace", str(number).encode()), ("trace", None)] if number % 2 else []
        yield Record(value, key=str(number), headers=trace)


if __name__ == "__main__":
    command_line(main, __doc__)
