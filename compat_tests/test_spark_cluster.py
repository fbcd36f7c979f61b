"""Tests a stream from three brokers. A broker that is a leader is killed in the middle; the stream continues, and reads
every record once."""

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from oracle.cluster import Cluster

TOPIC = "streamed"
PARTITIONS = 6
COUNT = 30_000


def write(cluster: Cluster, values: range) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True})
    for value in values:
        producer.produce(TOPIC, str(value), partition=value % PARTITIONS)
    assert producer.flush(60) == 0


@pytest.mark.full  # test_cluster.py kills a leader under other clients
@pytest.mark.timeout(600)
def test_a_stream_survives_the_leader_that_it_reads_from(spark: SparkSession, target_name: str, tmp_path: Path) -> None:
    with Cluster(target_name, jvm=("-XX:TieredStopAtLevel=1",)) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)], operation_timeout=30)[TOPIC].result(30)
        cluster.await_in_sync(TOPIC)
        write(cluster, range(COUNT // 2))
        kafka = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}
        records = spark.readStream.format("kafka").options(**kafka, maxOffsetsPerTrigger="2000").load()
        killed: list[int] = []

        def keep(batch: DataFrame, number: int) -> None:
            batch.write.mode("overwrite").parquet(str(tmp_path / "out" / f"batch={number}"))
            if number == 2:
                killed.append(cluster.leader_of(TOPIC, 0))
                cluster.nodes[killed[0]].kill9()

        query = (
            records.select(F.col("value").cast("string").cast("long").alias("number"))
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        query.processAllAvailable()
        write(cluster, range(COUNT // 2, COUNT))
        query.processAllAvailable()
        query.stop()
        assert cluster.leader_of(TOPIC, 0) not in killed
        assert len(killed) == 1
    found = spark.read.parquet(str(tmp_path / "out")).select("number").collect()
    assert sorted(row.number for row in found) == list(range(COUNT))
