"""A manifest: what one round added to an archive. Pure: bytes to values and back, every field checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

FORMAT = 1
MANIFESTS_MAX = 10**6
"""A limit against a folder that is not an archive; a round of a million records each would be 10^12."""


class NotAManifest(Exception):
    """Bytes that are no whole manifest; the text says what is wrong with them."""


@dataclass(slots=True, frozen=True)
class File:
    """A Parquet file with records of one partition and day. Hashes are 64 bits, signed (`facts.py` has what of)."""

    path: str
    """Below the archive's folder, with / between."""
    size_bytes: int
    bytes_hash: int
    records: int
    first: int
    last: int
    """Offsets, both included."""
    records_hash: int


@dataclass(slots=True, frozen=True)
class Span:
    """Offsets [start, end) of a partition, with all its records there; gaps are offsets that no record has."""

    partition: int
    lost_from: int
    """Where the span before this one ended: [lost_from, start) was deleted before it could be copied."""
    start: int
    end: int
    files: tuple[File, ...]

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
    """The spans of one topic, told by name and by id: a topic made again under its name is another one."""

    name: str
    topic_id: str
    spans: tuple[Span, ...]


@dataclass(slots=True, frozen=True)
class Manifest:
    """One round. `previous` is the digest of the manifest before it, `run` the folder with its files."""

    number: int
    previous: str | None
    run: str
    cluster_id: str
    isolation: str
    created_ms: int
    topics: tuple[TopicPart, ...]


def encode(manifest: Manifest) -> tuple[bytes, str]:
    """The bytes of a manifest, and the digest that is in them."""
    content = {"format": FORMAT, **asdict(manifest)}
    digest = _digest(content)
    return json.dumps({**content, "digest": digest}, indent=1).encode() + b"\n", digest


def decode(data: bytes) -> tuple[Manifest, str]:
    """The opposite of `encode`. Raises NotAManifest for anything but the whole and unchanged bytes."""
    try:
        content = json.loads(data)
    except ValueError as error:
        raise NotAManifest(f"it is half-written or not valid JSON ({error})") from error
    if not isinstance(content, dict) or "digest" not in content:
        raise NotAManifest("it has no digest")
    digest = content.pop("digest")
    if content.get("format") != FORMAT:
        raise NotAManifest(f"its format is {content.get('format')!r}, and this kpybroker knows {FORMAT}")
    if digest != _digest(content):
        raise NotAManifest("its content does not agree with its digest: it was changed")
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
    spans = (Span(**{**span, "files": tuple(File(**file) for file in span["files"])}) for span in content["spans"])
    return TopicPart(**{**content, "spans": tuple(spans)})


def _check(manifest: Manifest) -> None:
    """What no writer of ours would say. Raises NotAManifest."""
    for topic in manifest.topics:
        for span in topic.spans:
            place = f"{topic.name}-{span.partition}"
            if not 0 <= span.lost_from <= span.start <= span.end:
                raise NotAManifest(f"{place}: no range of offsets is {span.lost_from}, {span.start}, {span.end}")
            if span.gaps < 0:
                raise NotAManifest(f"{place}: {span.records} records in the offsets {span.start} to {span.end}")
            for file in span.files:
                if not span.start <= file.first <= file.last < span.end:
                    raise NotAManifest(f"{file.path} has offsets outside {span.start} to {span.end}")
                if not file.path.startswith(f"data/run={manifest.run}/topic={topic.name}/partition={span.partition}/"):
                    raise NotAManifest(f"{file.path} is not a file of {place} in the run {manifest.run}")
