"""Plans which offsets a run copies and splits them into rounds. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kpybroker.archive.history import TopicPartition
from kpybroker.client.client import CommandFailed


@dataclass(slots=True, frozen=True)
class Topic:
    """A topic of the cluster. `offsets`: the readable offsets [start, end) by partition."""

    name: str
    topic_id: str
    offsets: Mapping[int, tuple[int, int]]


@dataclass(slots=True, frozen=True)
class Range:
    """Offsets [start, end) to copy, possibly none. The topic deleted [lost_from, start) since the last run."""

    lost_from: int
    start: int
    end: int


Ranges = dict[TopicPartition, Range]


def plan(topics: list[Topic], ends: Mapping[TopicPartition, int]) -> Ranges:
    """Ranges from the end of the archive to the end of each partition; archived partitions without new offsets are
    omitted.

    A partition that is not in the archive starts at its log start. If its topic was archived before, it starts at 0,
    because the partition was added later, and the offsets below its log start are lost.

    Raises CommandFailed if the archive has offsets beyond the end of the topic.
    """
    known = {topic for topic, _ in ends}
    ranges: Ranges = {}
    for topic in topics:
        for partition, (log_start, log_end) in sorted(topic.offsets.items()):
            place = topic.name, partition
            at = ends.get(place, 0 if topic.name in known else log_start)
            if at > log_end:
                raise CommandFailed(
                    f"{topic.name}-{partition} ends at {log_end}, but the archive has it up to {at}: the topic has "
                    "lost records, or it is not the one that was archived; nothing was written"
                )
            if at < log_end or place not in ends:
                ranges[place] = Range(at, max(at, log_start), log_end)
    return ranges


def without_deleted(ranges: Ranges, now: list[Topic]) -> Ranges:
    """The same ranges, with the offsets marked as lost that the topics have deleted since the plan was made."""
    starts = {(topic.name, partition): start for topic in now for partition, (start, _) in topic.offsets.items()}
    return {
        place: Range(range_.lost_from, min(max(range_.start, starts.get(place, 0)), range_.end), range_.end)
        for place, range_ in ranges.items()
    }


def rounds(ranges: Ranges, offsets_max: int) -> Iterator[Ranges]:
    """Split the ranges into rounds of at most `offsets_max` offsets; every round has a part of every partition's
    range."""
    left = dict(ranges)
    while left:
        total = sum(range_.end - range_.start for range_ in left.values())
        turn: Ranges = {}
        room = offsets_max
        for place, range_ in sorted(left.items()):
            size = range_.end - range_.start
            share = size if total <= offsets_max else min(size, room, max(1, size * offsets_max // total))
            # even an empty part, so that the first manifest has all partitions
            turn[place] = Range(range_.lost_from, range_.start, range_.start + share)
            room -= share
        yield turn
        for place, taken in turn.items():
            if taken.end == left[place].end:
                del left[place]
            else:
                left[place] = Range(taken.end, taken.end, left[place].end)
