"""Verifies that no offset is missing from both archive and topic, and that no record is damaged or archived twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import xor
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from kpybroker.archive import facts
from kpybroker.archive.history import RUN
from kpybroker.spark import explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kpybroker.archive.history import ArchiveHistory, TopicPartition
    from kpybroker.archive.manifest import ArchivedFile
    from kpybroker.archive.planning import Topic
    from kpybroker.archive.store import Store
    from kpybroker.spark.cluster import Cluster


@dataclass(slots=True)
class Verdict:
    """The result of verify, as lines of text. The archive is intact if there are no faults; remarks are not faults."""

    faults: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    compared: dict[TopicPartition, int] = field(default_factory=dict)
    """The number of archived records that the topic still has with the same content, by partition."""


def look_at_folder(history: ArchiveHistory, present: Mapping[str, int], verdict: Verdict) -> dict[str, ArchivedFile]:
    """Compare the existing files (size by path) with the manifests. Returns the files of the right size, by path."""
    whole: dict[str, ArchivedFile] = {}
    for _, file in history.files():
        size = present.get(file.path)
        if size is None:
            verdict.faults.append(
                f"{file.path} is missing: {file.records} records, offsets {file.first} to {file.last}"
            )
        elif size != file.size_bytes:
            verdict.faults.append(f"{file.path} has {size} bytes, but should have {file.size_bytes}")
        else:
            whole[file.path] = file
    named = {file.path for _, file in history.files()}
    left = 0
    gone: set[str] = set()
    for path in sorted(present.keys() - named):
        folder = path.split("/")[1]
        if folder.removeprefix("run=") in history.runs:
            verdict.faults.append(f"{path} is in the folder of a run that did not write it: a copy of another file?")
        elif not RUN.fullmatch(folder):
            verdict.remarks.append(f"{path} does not belong to the archive; readers ignore it")
        elif (lacks := history.lacks(folder)) is not None:
            gone.add(lacks)
        else:
            left += 1
    verdict.faults += sorted(gone)
    if left:
        verdict.remarks.append(f"{left} files of unfinished runs, which readers ignore; `archive clean` deletes them")
    return whole


def look_at_offsets(history: ArchiveHistory, topics: list[Topic], verdict: Verdict) -> None:
    """Compare the ranges of the archive with those of the topics: together they must have every offset."""
    ends = history.ends()
    for topic in topics:
        for partition, (log_start, log_end) in sorted(topic.offsets.items()):
            place = f"{topic.name}-{partition}"
            end = ends.get((topic.name, partition))
            if end is None:  # a new partition, because the first round had all partitions that existed then
                end = 0
                verdict.remarks.append(f"{place} is not archived yet; the topic has it from offset {log_start} on")
            if end < log_start:
                verdict.faults.append(f"{place}: offsets {end} to {log_start - 1} are in neither archive nor topic")
            elif end > log_end:
                verdict.faults.append(f"{place} ends at {log_end}, but the archive has it up to {end}")
    for name, span in history.spans():
        if span.lost:
            verdict.remarks.append(
                f"{name}-{span.partition}: offsets {span.lost_from} to {span.start - 1} were deleted from the topic "
                "before they were archived; the manifest lists them"
            )


def look_into_files(
    spark: SparkSession, store: Store, files: Mapping[str, ArchivedFile], verdict: Verdict
) -> list[ArchivedFile]:
    """Check the bytes of the files, then their records. Returns the files that match the manifest."""
    hashes = facts.bytes_of_files(spark, store.uri, files) if files else {}
    same = {path: file for path, file in files.items() if hashes.get(path) == file.bytes_hash}
    verdict.faults += [f"{path} was changed: its bytes differ from those written" for path in files.keys() - same]
    if not same:
        return []
    found = _records(spark, store, same, verdict)
    readable = [path for path in same if path in found]
    right = []
    for path in readable:
        file = same[path]
        expected = facts.RecordFacts(file.records, file.first, file.last, file.records_hash)
        if found[path] == expected:
            right.append(file)
        else:
            verdict.faults.append(f"{path} has {found[path]}, but the manifest has {expected}")
    if readable:
        for (topic, partition), more in facts.repeated(facts.read_files(spark, store.uri, readable)).items():
            verdict.faults.append(f"{topic}-{partition}: {more} records repeat the offset of another one")
    return right


def _records(
    spark: SparkSession, store: Store, files: Mapping[str, ArchivedFile], verdict: Verdict
) -> dict[str, facts.RecordFacts | None]:
    """Facts about the records of each readable file, by path; None if the file has no records."""
    try:
        return {**dict.fromkeys(files), **facts.records_of_files(spark, store.uri, files)}
    except (PySparkException, Py4JJavaError):  # the error does not always name the file
        found: dict[str, facts.RecordFacts | None] = {}
        for path in files:
            try:
                found[path] = facts.records_of_files(spark, store.uri, [path]).get(path)
            except (PySparkException, Py4JJavaError) as error:
                verdict.faults.append(f"{path} cannot be read: {explained(error)}")
        return found


class Comparison:
    """Compares archive and topic in the offsets that both have."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        store: Store,
        history: ArchiveHistory,
        topics: list[Topic],
        damaged: set[TopicPartition],
    ) -> None:
        """`damaged`: partitions to skip, as their files cannot be read."""
        assert history.origin is not None, "there is an archive"
        self._spark = spark
        self._store = store
        self._files = list(history.files())
        ends = history.ends()
        begins: dict[TopicPartition, int] = {}
        for topic, span in history.spans():
            begins.setdefault((topic, span.partition), span.start)
        self._ranges = {
            (topic.name, partition): (
                max(log_start, begins[topic.name, partition]),
                min(log_end, ends[topic.name, partition]),
            )
            for topic in topics
            for partition, (log_start, log_end) in topic.offsets.items()
            if (topic.name, partition) in begins.keys() - damaged
        }
        self._ranges = {place: (start, end) for place, (start, end) in self._ranges.items() if start < end}
        self._cluster = cluster
        self._isolation = history.origin.isolation

    def run(self, verdict: Verdict) -> None:
        """Compare checksums and, where they differ, record by record."""
        if not self._ranges:
            return
        found = self._of_topics()
        grouped = found.groupBy("topic", "partition").agg(*facts.summary()).collect()
        in_topic = {(row[0], row[1]): (row[2], row[5]) for row in grouped}
        in_archive = self._of_archive()
        differ = {}
        for place, range_ in self._ranges.items():
            topic_facts = in_topic.get(place, (0, 0))
            if topic_facts == in_archive[place]:
                verdict.compared[place] = topic_facts[0]
            else:
                differ[place] = range_
        if differ:
            self._name(differ, verdict)

    def _of_topics(self) -> DataFrame:
        return facts.read_topics(self._spark, self._cluster, self._ranges, self._isolation)

    def _of_archive(self) -> dict[TopicPartition, tuple[int, int]]:
        """The number and checksum of the records in the range, by partition. For whole files, the manifest has them."""
        whole: dict[TopicPartition, list[tuple[int, int]]] = {place: [] for place in self._ranges}
        parted = []
        for place, file in self._files:
            if place in self._ranges and file.last >= self._ranges[place][0]:
                if file.first >= self._ranges[place][0]:
                    whole[place].append((file.records, file.records_hash))
                else:
                    parted.append(file.path)
        if parted:
            rows = self._within(facts.read_files(self._spark, self._store.uri, parted))
            for row in rows.groupBy("topic", "partition").agg(*facts.summary()).collect():
                whole[row[0], row[1]].append((row[2], row[5]))
        return {
            place: (sum(records for records, _ in rows), reduce(xor, (checksum for _, checksum in rows), 0))
            for place, rows in whole.items()
        }

    def _within(self, records: DataFrame) -> DataFrame:
        """The records from the start of the range onwards; all archived records are before its end."""
        starts = [
            (F.col("topic") == topic) & (F.col("partition") == partition) & (F.col("offset") >= start)
            for (topic, partition), (start, _) in self._ranges.items()
        ]
        return records.where(reduce(lambda left, right: left | right, starts))

    def _name(self, differ: dict[TopicPartition, tuple[int, int]], verdict: Verdict) -> None:
        """Report records that differ as faults, and records that the topic no longer has (compaction) as remarks."""
        self._ranges = differ
        place = ["topic", "partition", "offset"]
        paths = [file.path for where, file in self._files if where in differ]
        archived = self._within(facts.read_files(self._spark, self._store.uri, paths))
        old = archived.select(*place, facts.hash_of_record().alias("archived"))
        new = self._of_topics().select(*place, facts.hash_of_record().alias("now"))
        kind = (
            F.when(F.col("now").isNull(), "gone")
            .when(F.col("archived").isNull(), "absent")
            .when(F.col("now") != F.col("archived"), "other")
            .otherwise("same")
        )
        both = old.join(new, place, "full").withColumn("kind", kind)
        kinds = both.groupBy("topic", "partition", "kind")
        for row in kinds.agg(F.count("*").alias("n"), F.min("offset").alias("first")).collect():
            where = f"{row.topic}-{row.partition}"
            if row.kind == "gone":
                verdict.remarks.append(f"{where}: {row.n} archived records are no longer in the topic (compaction)")
            elif row.kind == "same":
                verdict.compared[row.topic, row.partition] = row.n
            elif row.kind == "absent":
                verdict.faults.append(
                    f"{where}: {row.n} records of the topic are not archived, the first at {row.first}"
                )
            else:
                verdict.faults.append(f"{where}: {row.n} records differ from the topic's, the first at {row.first}")
