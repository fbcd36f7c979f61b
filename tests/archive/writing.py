"""Writes manifests and small data files for tests, without Spark."""

from __future__ import annotations

from pathlib import Path

from kpybroker.archive.history import ArchiveHistory, TopicPartition, commit
from kpybroker.archive.manifest import ArchivedFile, Manifest, Span, TopicPart
from kpybroker.archive.planning import Range
from kpybroker.archive.store import LocalStore

CLUSTER, TOPIC_ID = "cluster-a", "topic-id"
CONTENT = b"records"


def file_of(run: str, place: TopicPartition, first: int, last: int) -> ArchivedFile:
    path = f"data/run={run}/topic={place[0]}/partition={place[1]}/day=2026-01-01/part-{first}.parquet"
    return ArchivedFile(path, len(CONTENT), 1, last - first + 1, first, last, 2)


def manifest_of(history: ArchiveHistory, ranges: dict[TopicPartition, Range], run: str, **changed: object) -> Manifest:
    """The next manifest: one file for each range that is not empty, all offsets in it."""
    topics: dict[str, list[Span]] = {}
    for (topic, partition), at in ranges.items():
        files = (file_of(run, (topic, partition), at.start, at.end - 1),) if at.start < at.end else ()
        topics.setdefault(topic, []).append(Span(partition, at.lost_from, at.start, at.end, files))
    parts = tuple(TopicPart(topic, TOPIC_ID, tuple(spans)) for topic, spans in topics.items())
    fields = {"number": history.next_number, "previous": history.digest, "run": run, "cluster_id": CLUSTER}
    fields |= {"isolation": "read_committed", "created_ms": 1, "topics": parts, **changed}
    return Manifest(**fields)  # type: ignore[arg-type]


def write(
    store: LocalStore, root: Path, history: ArchiveHistory, ranges: dict[TopicPartition, Range], run: str
) -> ArchiveHistory:
    """A whole round: files, then the manifest."""
    manifest = manifest_of(history, ranges, run)
    for topic in manifest.topics:
        for span in topic.spans:
            for file in span.files:
                (root / file.path).parent.mkdir(parents=True, exist_ok=True)
                (root / file.path).write_bytes(CONTENT)
    return commit(store, history, manifest)
