"""Encodes, decodes and checks manifests, each of which lists the files that one round added to an archive. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

FORMAT = 1
MANIFESTS_MAX = 10**6
"""The most manifests in an archive: enough for 10^12 records in rounds of a million records."""


class NotAManifest(Exception):
    """The bytes are not a complete manifest; the text says what is wrong."""


@dataclass(slots=True, frozen=True)
class ArchivedFile:
    """A Parquet file with records of one partition and day. Hashes are signed 64-bit integers (see `facts.py`)."""

    path: str
    """Path below the archive's folder, separated by /."""
    size_bytes: int
    bytes_hash: int
    records: int
    first: int
    last: int
    """First and last offset, both inclusive."""
    records_hash: int


@dataclass(slots=True, frozen=True)
class Span:
    """All records of a partition at the offsets [start, end); gaps are offsets without a record."""

    partition: int
    lost_from: int
    """The end of the previous span. Offsets [lost_from, start) were deleted from the topic before they were copied."""
    start: int
    end: int
    files: tuple[ArchivedFile, ...]

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def gaps(self) -> int:
        """Offsets without a record."""
        return self.end - self.start - self.records

    @property
    def lost(self) -> int:
        return self.start - self.lost_from


@dataclass(slots=True, frozen=True)
class TopicPart:
    """The spans of one topic, identified by name and id, because a recreated topic has a new id."""

    name: str
    topic_id: str
    spans: tuple[Span, ...]


@dataclass(slots=True, frozen=True)
class Manifest:
    """One round. `previous`: digest of the previous manifest. `run`: the folder with its files."""

    number: int
    previous: str | None
    run: str
    cluster_id: str
    isolation: str
    created_ms: int
    topics: tuple[TopicPart, ...]


def encode(manifest: Manifest) -> tuple[bytes, str]:
    """The bytes of a manifest, and the digest that they contain."""
    content = {"format": FORMAT, **asdict(manifest)}
    digest = _digest(content)
    return json.dumps({**content, "digest": digest}, indent=1).encode() + b"\n", digest


def decode(data: bytes) -> tuple[Manifest, str]:
    """The inverse of `encode`. Raises NotAManifest unless the bytes are complete and unchanged."""
    try:
        content = json.loads(data)
    except ValueError as error:
        raise NotAManifest(f"it is incomplete or not valid JSON ({error})") from error
    if not isinstance(content, dict) or "digest" not in content:
        raise NotAManifest("it has no digest")
    digest = content.pop("digest")
    if content.get("format") != FORMAT:
        raise NotAManifest(f"its format is {content.get('format')!r}, but this kpybroker supports only {FORMAT}")
    if digest != _digest(content):
        raise NotAManifest("its content does not match its digest: it was changed")
    del content["format"]
    try:
        manifest = Manifest(**{**content, "topics": tuple(_topic(topic) for topic in content["topics"])})
    except (KeyError, TypeError) as error:
        raise NotAManifest(f"a field is missing or unknown ({error})") from error
    _check(manifest)
    return manifest, digest


def _digest(content: Mapping[str, Any]) -> str:
    plain = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()


def _topic(content: Mapping[str, Any]) -> TopicPart:
    spans = (
        Span(**{**span, "files": tuple(ArchivedFile(**file) for file in span["files"])}) for span in content["spans"]
    )
    return TopicPart(**{**content, "spans": tuple(spans)})


def _check(manifest: Manifest) -> None:
    """Check the consistency of the fields. Raises NotAManifest."""
    for topic in manifest.topics:
        for span in topic.spans:
            place = f"{topic.name}-{span.partition}"
            if not 0 <= span.lost_from <= span.start <= span.end:
                raise NotAManifest(f"{place}: invalid range of offsets {span.lost_from}, {span.start}, {span.end}")
            if span.gaps < 0:
                raise NotAManifest(f"{place}: {span.records} records in the offsets {span.start} to {span.end}")
            for file in span.files:
                if not span.start <= file.first <= file.last < span.end:
                    raise NotAManifest(f"{file.path} has offsets outside {span.start} to {span.end}")
                if not file.path.startswith(f"data/run={manifest.run}/topic={topic.name}/partition={span.partition}/"):
                    raise NotAManifest(f"{file.path} is not a file of {place} in the run {manifest.run}")
