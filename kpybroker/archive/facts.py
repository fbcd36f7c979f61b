"""Computes facts about records and files with Spark, in one pass that returns one row per file or partition.

Hashes are 64-bit xxHashes, combined by xor, so the order of records does not matter. Each record's hash includes its
offset, so that equal records at different offsets have different hashes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from kpybroker.archive.history import TopicPartition
    from kpybroker.spark.cluster import Cluster

SCHEMA = (
    "key binary, value binary, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>, run string, topic string, partition int, day date"
)
"""The columns of a file, and those of the folders in its path."""
WORD = 64
FILE = r"(data/run=[^/]+/.*)$"
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # keep times before the year 1582 unchanged
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # a damaged statistic in a footer must not hide records
    "spark.sql.parquet.filterPushdown": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # limits the batches that go to Python, so that records of 3 MB fit into memory
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
}
RAW = {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}
"""Reads local files without Hadoop's .crc files, so that a changed byte does not fail a job. `verify` reports it."""
READING = {"datetimeRebaseMode": "CORRECTED", "ignoreCorruptFiles": "false", "ignoreMissingFiles": "false", **RAW}
"""Options of all reads. They override the settings of the session."""
WRITING = {"compression": "zstd", "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


def own(spark: SparkSession) -> SparkSession:
    """A new session with SETTINGS on the same context, so that the caller's session is unchanged."""
    ours = spark.newSession()
    for name, value in SETTINGS.items():
        ours.conf.set(name, value)
    return ours


class RecordFacts(NamedTuple):
    """Facts about the records of a file, or of a range of offsets."""

    records: int
    first: int
    last: int
    records_hash: int


def hash_of_record() -> Column:
    """A hash of a record without its topic and partition. Null and empty values give different hashes."""
    return F.xxhash64(
        "offset",
        "timestamp",
        "timestampType",
        F.col("key").isNull(),
        "key",
        F.col("value").isNull(),
        "value",
        F.coalesce(F.size("headers"), F.lit(-1)),
        F.transform("headers", _hash_of_header),
    )


def _hash_of_header(header: Column) -> Column:
    return F.xxhash64(header["key"], header["value"].isNull(), header["value"])


def summary() -> list[Column]:
    """The columns of RecordFacts, for an aggregation."""
    return [F.count("*"), F.min("offset"), F.max("offset"), F.bit_xor(hash_of_record())]


def read_files(spark: SparkSession, uri: str, paths: Iterable[str]) -> DataFrame:
    """Records of these files, with the columns of SCHEMA."""
    files = [f"{uri}/{path}" for path in paths]
    return spark.read.schema(SCHEMA).options(**READING, basePath=f"{uri}/data").parquet(*files)


def records_of_files(spark: SparkSession, uri: str, paths: Iterable[str]) -> dict[str, RecordFacts]:
    """Facts about the records of each file, by path. Files without records are omitted."""
    by_file = read_files(spark, uri, paths).withColumn("file", _file())
    return {row[0]: RecordFacts(*row[1:]) for row in by_file.groupBy("file").agg(*summary()).collect()}


def bytes_of_files(spark: SparkSession, uri: str, paths: Iterable[str]) -> dict[str, int]:
    """A hash of each file's bytes, by path: the xor of the hashes of its lines, which Spark can stream from any
    file."""
    lines = (
        spark.read.options(**RAW, lineSep="\n").text([f"{uri}/{path}" for path in paths]).withColumn("file", _file())
    )
    return dict(lines.groupBy("file").agg(F.bit_xor(F.xxhash64("value"))).collect())


def _file() -> Column:
    return F.regexp_extract(F.input_file_name(), FILE, 1)


def repeated(records: DataFrame) -> dict[TopicPartition, int]:
    """The number of records in each partition that repeat the offset of another record, if there are any. The count is
    exact: it uses one bit per offset and groups 64 bits in a word, so there are about 64 times fewer groups than
    records.
    """
    bit = F.expr(f"shiftleft(1L, cast(offset % {WORD} as int))")
    words = records.groupBy("topic", "partition", F.expr(f"offset div {WORD}").alias("word"))
    found = words.agg(F.count("*").alias("records"), F.bit_or(bit).alias("bits"))
    more = found.groupBy("topic", "partition").agg(F.sum(F.col("records") - F.bit_count("bits")).alias("more"))
    return {(row.topic, row.partition): row.more for row in more.where("more > 0").collect()}


def read_topics(
    spark: SparkSession, cluster: Cluster, ranges: Mapping[TopicPartition, tuple[int, int]], isolation: str
) -> DataFrame:
    """The current records in [start, end) of each partition, with the columns of Spark's Kafka source."""
    places: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for (topic, partition), (start, end) in ranges.items():
        places.setdefault(topic, []).append(partition)
        starts.setdefault(topic, {})[str(partition)] = start
        ends.setdefault(topic, {})[str(partition)] = end
    options = {
        **cluster.spark_options(),
        "kafka.isolation.level": isolation,
        "assign": json.dumps(places),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "includeHeaders": "true",
        "minPartitions": str(max(len(ranges), spark.sparkContext.defaultParallelism)),
    }
    return spark.read.format("kafka").options(**options).load()
