"""Runs a round of a copy: writes records to Parquet, reads them back, and commits (protocol: `__init__.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from kpybroker.archive import facts
from kpybroker.archive.cluster import describe
from kpybroker.archive.history import ArchiveHistory, TopicPartition, commit, new_run
from kpybroker.archive.manifest import ArchivedFile, Manifest, Span, TopicPart
from kpybroker.archive.planning import Ranges
from kpybroker.client.client import CommandFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kpybroker.archive.store import Store
    from kpybroker.spark.cluster import Cluster


class Copier:
    """Copies one cluster's topics to one archive, one round at a time. `history` is the current content of the
    archive."""

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        cluster: Cluster,
        store: Store,
        history: ArchiveHistory,
        isolation: str,
        timeout_ms: int,
    ) -> None:
        self._spark = spark
        self._cluster = cluster
        self._store = store
        self._isolation = isolation
        self._timeout_ms = timeout_ms
        self.history = history

    def copy(self, ranges: Ranges, cluster_id: str, topic_ids: dict[str, str]) -> Manifest:
        """Run one round. Raises CommandFailed if another archiver committed first, or the files differ from the
        topic."""
        number = self.history.next_number
        run = new_run(number)
        folder = f"data/run={run}"
        try:
            files = self._write(ranges, folder)
            self._require_same(cluster_id, topic_ids)
            self._store.sync(folder)
            manifest = Manifest(
                number=number,
                previous=self.history.digest,
                run=run,
                cluster_id=cluster_id,
                isolation=self._isolation,
                created_ms=time.time_ns() // 1_000_000,
                topics=_topics(ranges, files, topic_ids),
            )
            self.history = commit(self._store, self.history, manifest)
        except CommandFailed:
            self._store.delete(folder)
            raise
        return manifest

    def _require_same(self, cluster_id: str, topic_ids: dict[str, str]) -> None:
        """Raises CommandFailed if topics were recreated since the plan was made, because the records may come from both
        the old and the new topic."""
        now, found = describe(self._cluster, sorted(topic_ids), self._isolation, self._timeout_ms)
        changed = [topic.name for topic in found if topic.topic_id != topic_ids[topic.name]]
        if changed or now != cluster_id:
            what = f"{changed[0]} was deleted and recreated" if changed else "another cluster answered"
            raise CommandFailed(f"{what} during the copy: this round was abandoned, and none of its files are kept")

    def _write(self, ranges: Ranges, folder: str) -> dict[TopicPartition, list[ArchivedFile]]:
        """Write the records to a folder, and read its files back. Returns the files by partition."""
        offsets = {place: (range_.start, range_.end) for place, range_ in ranges.items() if range_.start < range_.end}
        if not offsets:
            return {}
        spark = self._spark()  # the session must exist before any Column is created
        seen = Observation()
        count, _, _, checksum = facts.summary()
        records = facts.read_topics(spark, self._cluster, offsets, self._isolation)
        records = records.observe(seen, count.alias("records"), checksum.alias("checksum"))
        order = ["topic", "partition", "day", "offset"]
        dated = records.withColumn("day", F.to_date("timestamp"))
        sorted_ = dated.sortWithinPartitions(*order)
        sorted_.write.options(**facts.WRITING).partitionBy(*order[:-1]).parquet(f"{self._store.uri}/{folder}")
        found = self._look_at(folder)
        read = seen.get
        checksums = 0
        for file in found:
            checksums ^= file.records_hash
        if (read["records"], read["checksum"] or 0) != (sum(file.records for file in found), checksums):
            raise CommandFailed(f"the files in {self._store.uri}/{folder} differ from the topic; nothing is kept")
        by_place: dict[TopicPartition, list[ArchivedFile]] = {}
        for file in found:
            by_place.setdefault(place_of(file.path), []).append(file)
        return by_place

    def _look_at(self, folder: str) -> list[ArchivedFile]:
        sizes = self._store.files(folder)
        if not sizes:
            return []
        uri = self._store.uri
        bytes_hashes = facts.bytes_of_files(self._spark(), uri, sizes)
        found = facts.records_of_files(self._spark(), uri, sizes)
        return [
            ArchivedFile(path, sizes[path], bytes_hashes[path], row.records, row.first, row.last, row.records_hash)
            for path, row in sorted(found.items())
        ]


def place_of(path: str) -> TopicPartition:
    """The topic and partition in the path of a file."""
    _, _, topic, partition, *_ = path.split("/")
    return topic.partition("=")[2], int(partition.partition("=")[2])


def _topics(
    ranges: Ranges, files: dict[TopicPartition, list[ArchivedFile]], topic_ids: dict[str, str]
) -> tuple[TopicPart, ...]:
    spans: dict[str, list[Span]] = {}
    for (topic, partition), range_ in sorted(ranges.items()):
        of_span = tuple(files.get((topic, partition), ()))
        span = Span(partition, range_.lost_from, range_.start, range_.end, of_span)
        spans.setdefault(topic, []).append(span)
    return tuple(TopicPart(topic, topic_ids[topic], tuple(found)) for topic, found in spans.items())
