"""Loads of Spark with its Kafka connector: batch reads and writes, a stream from topic to topic, a very small read, and
idle streams."""

import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from bench.control import create_topic, delete_topic, end_offsets, fresh_name
from bench.measure import Better, Case, LoadError, Measure
from bench.target import Target
from kpybroker.spark import session

PARTITIONS = 4
CORES = 2
SMALL = 200
QUERIES = 10


def spark_for(target: Target) -> SparkSession:
    """The only session of this process, started by the first case that needs it."""
    return session(target.bootstrap, cores=CORES, memory="2g", settings={"spark.log.level": "ERROR"})


def kafka(target: Target) -> dict[str, str]:
    return {"kafka.bootstrap.servers": target.bootstrap, "startingOffsets": "earliest"}


def read(target: Target, topic: str) -> DataFrame:
    return spark_for(target).read.format("kafka").options(**kafka(target), subscribe=topic).load()


def fill(target: Target, topic: str, count: int, size_bytes: int) -> None:
    """Fill a topic with padded numbers, with Spark's producer and its default batches."""
    numbers = spark_for(target).range(0, count, 1, PARTITIONS)
    rows = numbers.select(F.rpad(F.col("id").cast("string"), size_bytes, "x").alias("value"))
    rows.write.format("kafka").options(**{"kafka.bootstrap.servers": target.bootstrap, "topic": topic}).save()
    stored = sum(end_offsets(target, topic, PARTITIONS))
    if stored != count:
        raise LoadError(f"{target.name} holds {stored} of {count} records that Spark wrote")


def timed_read(target: Target, topic: str, count: int, size_bytes: int) -> float:
    """Seconds until every value has been read and its length summed."""
    records = read(target, topic)
    began = time.perf_counter()
    found = records.agg(F.count("value"), F.sum(F.length("value"))).first()
    elapsed_s = time.perf_counter() - began
    if found is None or tuple(found) != (count, count * size_bytes):
        raise LoadError(f"Spark read {found} from {target.name}, not {count} records of {size_bytes} bytes")
    return elapsed_s


class Loaded(Case):
    """A load on a topic with `count` records of `size_bytes`."""

    family = "spark"
    warm_up_slices = 2
    repeats = 0

    def __init__(self, name: str, measure: Measure, count: int, size_bytes: int) -> None:
        self.name = name
        self.measures = (measure,)
        self.count = count
        self.size_bytes = size_bytes
        self._topics: dict[str, str] = {}

    def prepare(self, target: Target) -> None:
        topic = self._topics[target.name] = fresh_name(self.name)
        create_topic(target, topic, PARTITIONS)
        fill(target, topic, self.count, self.size_bytes)

    def clean(self, target: Target) -> None:
        delete_topic(target, self._topics.pop(target.name))


class Read(Loaded):
    """Reads the topic in a batch."""

    def slice(self, target: Target) -> dict[str, float]:
        elapsed_s = timed_read(target, self._topics[target.name], self.count, self.size_bytes)
        (measure,) = self.measures
        return {measure.key: elapsed_s * 1e3 if measure.unit == "ms" else self.count / elapsed_s / 1e3}


class Stream(Loaded):
    """Copies the topic to another topic with a stream that starts and ends."""

    def slice(self, target: Target) -> dict[str, float]:
        sink = fresh_name(self.name)
        create_topic(target, sink, PARTITIONS)
        source = spark_for(target).readStream.format("kafka").options(**kafka(target))
        records = source.option("subscribe", self._topics[target.name]).load().select("key", "value")
        with tempfile.TemporaryDirectory() as checkpoint:
            began = time.perf_counter()
            query = (
                records.writeStream.format("kafka")
                .options(**kafka(target), topic=sink, checkpointLocation=str(Path(checkpoint)))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            elapsed_s = time.perf_counter() - began
        stored = sum(end_offsets(target, sink, PARTITIONS))
        delete_topic(target, sink)
        if stored != self.count:
            raise LoadError(f"{target.name} holds {stored} of {self.count} records that the stream carried")
        return {self.measures[0].key: self.count / elapsed_s / 1e3}


class Write(Case):
    """Writes a batch of new records."""

    family = "spark"
    name = "spark-write-100"
    measures = (Measure(f"{name}.rate", "Spark batch write, 100 B", "k/s", Better.HIGHER, 1.0, 1.2),)
    warm_up_slices = 2
    repeats = 0
    count = 2_000_000
    size_bytes = 100

    def slice(self, target: Target) -> dict[str, float]:
        topic = fresh_name(self.name)
        create_topic(target, topic, PARTITIONS)
        began = time.perf_counter()
        fill(target, topic, self.count, self.size_bytes)
        elapsed_s = time.perf_counter() - began
        delete_topic(target, topic)
        return {self.measures[0].key: self.count / elapsed_s / 1e3}


class Idle(Case):
    """Streams with the default trigger on a topic without new records. They request the end offset again and again."""

    family = "spark"
    name = "spark-idle"
    measures = (Measure("spark-idle.cpu", f"broker CPU of {QUERIES} idle streams", "ms/s", Better.LOWER, 1.0, 0.5),)
    warm_up_slices = 2
    repeats = 0
    seconds = 10.0

    def slice(self, target: Target) -> dict[str, float]:
        topic = fresh_name(self.name)
        create_topic(target, topic, PARTITIONS)
        fill(target, topic, SMALL, 100)
        source = spark_for(target).readStream.format("kafka").options(**kafka(target), subscribe=topic)
        with tempfile.TemporaryDirectory() as folder:
            queries = [
                source.load().writeStream.format("noop").option("checkpointLocation", f"{folder}/{number}").start()
                for number in range(QUERIES)
            ]
            try:
                for query in queries:
                    query.processAllAvailable()
                before = target.cpu()
                time.sleep(self.seconds)
                cpu = target.cpu() - before
                if not all(query.isActive for query in queries):
                    raise LoadError(f"a stream on {target.name} has ended")
            finally:
                for query in queries:
                    query.stop()
        delete_topic(target, topic)
        return {self.measures[0].key: cpu.per(self.seconds / 1e3)}


def rate(name: str, label: str, floor: float = 1.0) -> Measure:
    return Measure(f"{name}.rate", label, "k/s", Better.HIGHER, floor, 1.2)


def cases() -> list[Case]:
    small = Measure("spark-read-small.ms", f"Spark reads {SMALL} records", "ms", Better.LOWER, 0.4, 0.3)
    return [
        Read("spark-read-100", rate("spark-read-100", "Spark batch read, 100 B"), 5_000_000, 100),
        Read("spark-read-1024", rate("spark-read-1024", "Spark batch read, 1 KiB"), 1_000_000, 1024),
        Write(),
        Stream("spark-etl-100", rate("spark-etl-100", "Spark stream from topic to topic, 100 B", 1.1), 5_000_000, 100),
        Read("spark-read-small", small, SMALL, 100),
        Idle(),
    ]
