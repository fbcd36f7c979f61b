"""Which dead letters were redriven: a set of offsets for each partition, stored as an offset commit.

The commit belongs to a group without members that is named after the topic. All offsets below the committed one were
redriven; with a filter, also ranges beyond it, which are in the metadata of the commit.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kpybroker.cli import group_facts
from kpybroker.client.client import Client, CommandFailed
from kpybroker.metadata.retirements import topic_of_retired

METADATA_MAX = 4096
"""The most characters of a commit's metadata: Apache Kafka's default of offset.metadata.max.bytes."""
TEXT_MAX = 1 << 20
"""The most bytes of the ranges before compression, so that no metadata can fill the memory."""
FORM = "1:"
"""Precedes the ranges, for the case that their form changes."""
Range = tuple[int, int]
"""An offset, and the one after the last."""


def redriven_by(topic: str) -> str:
    """The name of the group, and of the transactional id, with which the dead letters of a topic are redriven.

    It is the same for the topic's retired partitions, so that their letters stay redriven when they are retired.
    """
    return f"{topic_of_retired(topic) or topic}-redrive"


@dataclass(frozen=True, slots=True)
class Redriven:
    """The redriven offsets of a partition: those below `committed`, and `ranges`, which are in ascending order and
    touch neither each other nor `committed`."""

    committed: int = 0
    ranges: tuple[Range, ...] = ()

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self.ranges, offset, key=lambda each: each[0])
        return offset < self.committed or (at > 0 and offset < self.ranges[at - 1][1])

    def joined(self, more: Iterable[Range]) -> Redriven:
        """The union with other ranges."""
        found: list[Range] = [(0, self.committed)]
        for first, end in sorted([*self.ranges, *more]):
            if first <= found[-1][1]:
                found[-1] = found[-1][0], max(found[-1][1], end)
            else:
                found.append((first, end))
        return Redriven(found[0][1], tuple(found[1:]))

    def read(self, first: int, end: int, stored: Sequence[int], left: Sequence[int]) -> Redriven:
        """The set after a redrive has read the offsets from `first` to before `end`. There it found letters at the
        offsets `stored`, and leaves those at `left`, a part of them, for later; both ascend.

        Offsets without letters, such as transaction markers, join the letters beside them, and make no ranges of their
        own.
        """
        if not stored:
            touches = first <= self.committed or any(each_end == first for _, each_end in self.ranges)
            return self.joined([(first, end)] if touches else [])
        return self.joined(_runs(first, end, stored, left))

    @property
    def metadata(self) -> str | None:
        """The ranges as text; None if they do not fit into a commit."""
        if not self.ranges:
            return ""
        steps, at = [], self.committed
        for first, end in self.ranges:
            steps.append(f"{first - at}+{end - first}")
            at = end
        text = " ".join(steps).encode()
        found = FORM + base64.b64encode(zlib.compress(text, 9)).decode()
        return found if len(found) <= METADATA_MAX and len(text) <= TEXT_MAX else None


def _runs(first: int, end: int, stored: Sequence[int], left: Sequence[int]) -> Iterator[Range]:
    """The ranges from `first` to before `end` that have letters of `stored`, but not those in `left`."""
    begin = first
    for hole in left:
        if stored[bisect_left(stored, begin)] < hole:
            yield begin, hole
        begin = hole + 1
    if begin <= stored[-1]:
        yield begin, end


def parse_redriven(committed: int, metadata: str) -> Redriven:
    """Inverts `Redriven.metadata`. Raises ValueError."""
    if not metadata:
        return Redriven(committed)
    if not metadata.startswith(FORM):
        raise ValueError("other metadata")
    ranges, at = [], committed
    for step in _unpacked(metadata.removeprefix(FORM)).split(" "):
        gap, length = map(int, step.split("+"))
        if gap < 1 or length < 1 or at + gap + length >= 1 << 63:
            raise ValueError("no ranges in ascending order")
        ranges.append((at + gap, at + gap + length))
        at += gap + length
    return Redriven(committed, tuple(ranges))


def _unpacked(text: str) -> str:
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(text, validate=True), TEXT_MAX)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from error
    if not inflate.eof or inflate.unused_data:
        raise ValueError("truncated, or too long")
    return data.decode()


async def redriven_in(
    client: Client, topic: str, starts: Mapping[int, int], ends: Mapping[int, int], *, stable: bool
) -> dict[int, Redriven]:
    """The redriven offsets by partition, for the log start offsets and ends of the dead letter topic.

    `stable`: wait for the end of another redrive's transaction.

    Raises CommandFailed if a commit is not from a redrive of this topic, KafkaError.
    """
    group = redriven_by(topic)
    rows = await group_facts.commits(client, group, stable=stable)
    found = {}
    for partition, start in starts.items():
        row = rows.get((topic, partition))
        try:
            stored = Redriven() if row is None else parse_redriven(row.committed_offset, row.metadata or "")
        except ValueError as error:
            raise CommandFailed(
                f"the group {group} has an offset of {topic}-{partition} that no redrive has committed ({error}); "
                f"`kpybroker groups delete {group}` forgets what was redriven"
            ) from error
        last = stored.ranges[-1][1] if stored.ranges else stored.committed
        if last > max(ends[partition], start):
            raise CommandFailed(
                f"{topic}-{partition} ends at {ends[partition]}, but letters up to {last - 1} were redriven: if the "
                f"topic was created again, `kpybroker groups delete {group}` forgets what was redriven"
            )
        found[partition] = stored.joined([(0, start)])
    return found
