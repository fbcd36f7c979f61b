"""Rounds of a run: records of a range to Parquet, read back, and committed (the protocol is in `__init__.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from kpybroker.archive import facts
from kpybroker.archive.cluster import describe
from kpybroker.archive.history import History, TopicPartition, commit, new_run
from kpybroker.archive.manifest import File, Manifest, Span, TopicPart
from kpybroker.archive.planning import Ranges
from kpybroker.client.client import CommandFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kpybroker.archive.store import Store


class Copier:
    """Copies of one cluster's topics to one archive, a round at a time. `history` is the archive as it is by now."""

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        bootstrap: str,
        store: Store,
        history: History,
        isolation: str,
        timeout_ms: int,
    ) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._store = store
        self._isolation = isolation
        self._timeout_ms = timeout_ms
        self.history = history

    def copy(self, ranges: Ranges, cluster_id: str, topic_ids: dict[str, str]) -> Manifest:
        """One round. Raises CommandFailed where another archiver was quicker, or the files are not what was read."""
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
        """Raises CommandFailed where the topics are not those that were planned for: what was read may be of both."""
        now, found = describe(self._bootstrap, sorted(topic_ids), self._isolation, self._timeout_ms)
        changed = [topic.name for topic in found if topic.topic_id != topic_ids[topic.name]]
        if changed or now != cluster_id:
            what = f"{changed[0]} was deleted and made again" if changed else "another cluster answers"
            raise CommandFailed(f"{what} while it was archived: this round was given up, and nothing of it is kept")

    def _write(self, ranges: Ranges, folder: str) -> dict[TopicPartition, list[File]]:
        """Write the records under a folder; give what was found there afterwards."""
        offsets = {place: (range_.start, range_.end) for place, range_ in ranges.items() if range_.start < range_.end}
        if not offsets:
            return {}
        spark = self._spark()  # before any column is made
        seen = Observation()
        count, _, _, checksum = facts.summary()
        records = facts.read_topics(spark, self._bootstrap, offsets, self._isolation)
        records = records.observe(seen, count.alias("records"), checksum.alias("checksum"))
        order = ["topic", "partition", "day", "offset"]
        dated = records.withColumn("day", F.to_date("timestamp"))
        sorted_ = dated.sortWithinPartitions(*order)
        sorted_.write.options(**facts.WRITING).partitionBy(*order[:-1]).parquet(f"{self._store.uri}/{folder}")
        found = self._look_at(folder)
        told = seen.get
        checksums = 0
        for file in found:
            checksums ^= file.records_hash
        if (told["records"], told["checksum"] or 0) != (sum(file.records for file in found), checksums):
            raise CommandFailed(f"what Spark wrote to {self._store.uri}/{folder} is not what it read; nothing is kept")
        by_place: dict[TopicPartition, list[File]] = {}
        for file in found:
            by_place.setdefault(place_of(file.path), []).append(file)
        return by_place

    def _look_at(self, folder: str) -> list[File]:
        sizes = self._store.files(folder)
        if not sizes:
            return []
        uri = self._store.uri
        bytes_hashes = facts.bytes_of_files(self._spark(), uri, sizes)
        found = facts.records_of_files(self._spark(), uri, sizes)
        return [
            File(path, sizes[path], bytes_hashes[path], row.records, row.first, row.last, row.records_hash)
            for path, row in sorted(found.items())
        ]


def place_of(path: str) -> TopicPartition:
    """The topic and partition that a file's folders name."""
    _, _, topic, partition, *_ = path.split("/")
    return topic.partition("=")[2], int(partition.partition("=")[2])


def _topics(
    ranges: Ranges, files: dict[TopicPartition, list[File]], topic_ids: dict[str, str]
) -> tuple[TopicPart, ...]:
    spans: dict[str, list[Span]] = {}
    for (topic, partition), range_ in sorted(ranges.items()):
        of_span = tuple(files.get((topic, partition), ()))
        span = Span(partition, range_.lost_from, range_.start, range_.end, of_span)
        spans.setdefault(topic, []).append(span)
    return tuple(TopicPart(topic, topic_ids[topic], tuple(found)) for topic, found in spans.items())
