"""Late data and windows with Spark: orders are counted by minute, and those that come too late are left out.

A watermark of five minutes follows the latest event time that Spark has seen. The test runs the same query twice on one
checkpoint, as a job that is scheduled does: what comes within the watermark is added to its window, and what is older
is dropped. Needs `pip install 'kpybroker[spark]'` and Java 17.
"""

import pytest
from pyspark.sql import functions

from kpybroker.spark import QUICK_JVM, session

NOON_MS = 1_767_268_800_000
MINUTE_MS = 60_000


def count_by_minute(spark, bootstrap, topic, folder):
    """Add what is new in the topic to the counts in `folder`, and return the windows that are final."""
    orders = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    counts = orders.withWatermark("timestamp", "5 minutes").groupBy(functions.window("timestamp", "1 minute")).count()
    query = (
        counts.writeStream.outputMode("append")  # a window is written once, when nothing can be added to it
        .format("parquet")
        .option("path", f"{folder}/counts")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.read.parquet(f"{folder}/counts").select(
        functions.unix_timestamp("window.start").alias("start"), "count"
    )
    return {(row["start"] * 1000 - NOON_MS) // MINUTE_MS: row["count"] for row in rows.collect()}


@pytest.fixture(scope="module")
def spark(kpybroker):
    return session(kpybroker.bootstrap, settings=QUICK_JVM)


def test_late_orders_are_counted_until_the_watermark(kpybroker, spark, tmp_path):
    # without this, the broker may delete records with such old timestamps at any time
    topic = kpybroker.topic("orders", partitions=1, config={"retention.ms": -1})

    def order_at(*minutes):
        for minute in minutes:
            kpybroker.send(topic, "paid", timestamp_ms=NOON_MS + minute * MINUTE_MS)

    order_at(0, 0, 4)
    assert count_by_minute(spark, kpybroker.bootstrap, topic, tmp_path) == {}  # all windows may still grow
    order_at(0)  # four minutes late
    order_at(10)
    assert count_by_minute(spark, kpybroker.bootstrap, topic, tmp_path) == {0: 3, 4: 1}
    order_at(0)  # ten minutes late
    order_at(20)
    assert count_by_minute(spark, kpybroker.bootstrap, topic, tmp_path) == {0: 3, 4: 1, 10: 1}
