"""What Spark finds out about records and files, in one pass each and with a row per file or partition for the driver.

Hashes are 64-bit xxHashes, joined by xor: the order does not matter, and each record's has its offset in it, so that no
two records of a partition are taken for one another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from kpybroker.archive.history import TopicPartition

SCHEMA = (
    "key binary, value binary, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>, run string, topic string, partition int, day date"
)
"""Of a file, and of the folders it lies in."""
WORD = 64
FILE = r"(data/run=[^/]+/.*)$"
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # times before the year 1582 as they are
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # a damaged statistic in a footer must not hide records
    "spark.sql.parquet.filterPushdown": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # records of 3 MB fit into memory too, as many as go to Python at once
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
}
RAW = {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}
"""Local files without Hadoop's .crc beside them: a changed byte is to be found by us, and named, and ends no job."""
READING = {"datetimeRebaseMode": "CORRECTED", "ignoreCorruptFiles": "false", "ignoreMissingFiles": "false", **RAW}
"""Whatever the session says."""
WRITING = {"compression": "zstd", "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


def own(spark: SparkSession) -> SparkSession:
    """A session on the same context with the settings above, so that the caller's keep theirs."""
    ours = spark.newSession()
    for name, value in SETTINGS.items():
        ours.conf.set(name, value)
    return ours


class RecordFacts(NamedTuple):
    """Of the records of a file, or of some offsets of a partition."""

    records: int
    first: int
    last: int
    records_hash: int


def hash_of_record() -> Column:
    """Everything of a record but its topic and partition; null and empty differ."""
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
    """By path, what is in each file; a file without records is left out."""
    by_file = read_files(spark, uri, paths).withColumn("file", _file())
    return {row[0]: RecordFacts(*row[1:]) for row in by_file.groupBy("file").agg(*summary()).collect()}


def bytes_of_files(spark: SparkSession, uri: str, paths: Iterable[str]) -> dict[str, int]:
    """By path, a hash of the file's bytes: of its lines, since Spark streams and splits those of any file."""
    lines = (
        spark.read.options(**RAW, lineSep="\n").text([f"{uri}/{path}" for path in paths]).withColumn("file", _file())
    )
    return dict(lines.groupBy("file").agg(F.bit_xor(F.xxhash64("value"))).collect())


def _file() -> Column:
    return F.regexp_extract(F.input_file_name(), FILE, 1)


def repeated(records: DataFrame) -> dict[TopicPartition, int]:
    """By partition, how many records have an offset that another one has; partitions without such are left out.

    A bit for each offset, 64 in a group: exact, in the memory that a 64th of the records take.
    """
    bit = F.expr(f"shiftleft(1L, cast(offset % {WORD} as int))")
    words = records.groupBy("topic", "partition", F.expr(f"offset div {WORD}").alias("word"))
    found = words.agg(F.count("*").alias("records"), F.bit_or(bit).alias("bits"))
    more = found.groupBy("topic", "partition").agg(F.sum(F.col("records") - F.bit_count("bits")).alias("more"))
    return {(row.topic, row.partition): row.more for row in more.where("more > 0").collect()}


def read_topics(
    spark: SparkSession, bootstrap: str, ranges: Mapping[TopicPartition, tuple[int, int]], isolation: str
) -> DataFrame:
    """The records that the topics have now of [start, end) of each partition, as the connector shows them."""
    places: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for (topic, partition), (start, end) in ranges.items():
        places.setdefault(topic, []).append(partition)
        starts.setdefault(topic, {})[str(partition)] = start
        ends.setdefault(topic, {})[str(partition)] = end
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": isolation,
        "assign": json.dumps(places),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "includeHeaders": "true",
        "minPartitions": str(max(len(ranges), spark.sparkContext.defaultParallelism)),
    }
    return spark.read.format("kafka").options(**options).load()
