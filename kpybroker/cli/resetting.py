"""Plans `groups reset`: which partitions are reset, and to which offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kpybroker.cli import cluster_facts
from kpybroker.client.client import EARLIEST, LATEST, Client, CommandFailed
from kpybroker.errors import ConfigError
from kpybroker.topics import TopicPartition


@dataclass(slots=True, frozen=True)
class Target:
    """The position to reset to. Exactly one field is set."""

    to_earliest: bool = False
    to_latest: bool = False
    to_offset: int | None = None
    time_ms: int | None = None
    shift_by: int | None = None

    def __post_init__(self) -> None:
        given = [
            self.to_earliest,
            self.to_latest,
            *(x is not None for x in (self.to_offset, self.time_ms, self.shift_by)),
        ]
        if sum(given) != 1:
            raise ConfigError(
                "give exactly one of --to-earliest, --to-latest, --to-offset N, --to-time TIME and --shift-by N"
            )


@dataclass(slots=True, frozen=True)
class PlannedReset:
    """The new offset of one partition. `old` is None if the group has no committed offset for it."""

    topic: str
    partition: int
    old: int | None
    new: int
    end: int
    bounded: bool
    """Whether the requested offset is outside the log, so that the nearest one is used."""


def parse_scope(text: str) -> tuple[str, list[int] | None]:
    """`topic` (all partitions: None) or `topic:0,1,2`. Raises ConfigError."""
    name, colon, listed = text.partition(":")
    parts = listed.split(",")
    if not name or (colon and not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts)):
        raise ConfigError(f"cannot read {text!r}: write TOPIC or TOPIC:0,1,2")
    return name, sorted({int(part) for part in parts}) if colon else None


async def scope_of(
    client: Client, scopes: Sequence[tuple[str, list[int] | None]], offsets: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    """The partitions to reset; without scopes, all partitions of all topics with committed offsets of the group. Raises
    CommandFailed."""
    wanted = list(scopes) or [(name, None) for name in sorted({topic for topic, _ in offsets})]
    found: set[TopicPartition] = set()
    for name, chosen in wanted:
        known = sorted(row.partition_index for row in (await client.topic(name)).partitions)
        for partition in chosen or []:
            cluster_facts.require_partition(name, partition, known)
        found |= {(name, partition) for partition in (known if chosen is None else chosen)}
    return sorted(found)


async def plan(
    client: Client, places: Sequence[TopicPartition], offsets: Mapping[TopicPartition, int], target: Target
) -> list[PlannedReset]:
    """The new offset of every partition, limited to its log's start and end. Raises CommandFailed, KafkaError."""
    starts = await client.list_offsets(dict.fromkeys(places, EARLIEST))
    ends = await client.list_offsets(dict.fromkeys(places, LATEST))
    wanted = await _wanted(client, places, offsets, target, starts, ends)
    moves = []
    for place in places:
        new = min(max(wanted[place], starts[place]), ends[place])
        moves.append(PlannedReset(*place, offsets.get(place), new, ends[place], new != wanted[place]))
    return moves


async def _wanted(
    client: Client,
    places: Sequence[TopicPartition],
    offsets: Mapping[TopicPartition, int],
    target: Target,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> Mapping[TopicPartition, int]:
    if target.to_earliest:
        return starts
    if target.to_latest:
        return ends
    if target.to_offset is not None:
        return dict.fromkeys(places, target.to_offset)
    if target.time_ms is not None:
        found = await client.list_offsets(dict.fromkeys(places, target.time_ms))
        return {place: ends[place] if at < 0 else at for place, at in found.items()}
    shift = target.shift_by
    assert shift is not None
    for topic, partition in places:
        if (topic, partition) not in offsets:
            raise CommandFailed(f"the group has no committed offset for {topic}-{partition} to shift")
    return {place: offsets[place] + shift for place in places}
