"""Committed offsets of the groups of one partition: hard state, changed only by `apply`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Committed:
    """One committed offset, as OffsetCommitValue keeps it."""

    offset: int
    leader_epoch: int
    """-1 where the client did not say."""
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    """-1, or when it expires whatever the group does (clients that give a retention time: OffsetCommit v2 to v4)."""
    topic_id: bytes

    def expired(self, unused_since_ms: int, now_ms: int, retention_ms: int) -> bool:
        """True if it may be forgotten, being of no use to its group since `unused_since_ms` (KIP-211)."""
        if self.expire_timestamp_ms >= 0:
            return now_ms >= self.expire_timestamp_ms
        return now_ms - unused_since_ms >= retention_ms


Place = tuple[str, int]
"""(topic, partition)"""


class Offsets:
    """group id -> (topic, partition) -> Committed."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[str, dict[Place, Committed]] = {}

    def apply(self, group_id: str, place: Place, committed: Committed | None) -> None:
        """Keep an offset, or with None forget it."""
        if committed is not None:
            self._groups.setdefault(group_id, {})[place] = committed
            return
        of_group = self._groups.get(group_id)
        if of_group is not None:
            of_group.pop(place, None)
            if not of_group:
                del self._groups[group_id]

    def of(self, group_id: str) -> dict[Place, Committed]:
        """All offsets of a group; not to be changed."""
        return self._groups.get(group_id, {})

    def groups(self) -> Iterator[str]:
        return iter(self._groups)

    def fetch(
        self, group_id: str, topics: Sequence[tuple[str, Sequence[int]]] | None
    ) -> list[tuple[str, list[tuple[int, Committed | None]]]]:
        """What OffsetFetch asks for, in its order; None where nothing is committed. `topics` None: everything."""
        of_group = self.of(group_id)
        if topics is not None:
            return [
                (topic, [(partition, of_group.get((topic, partition))) for partition in partitions])
                for topic, partitions in topics
            ]
        found: dict[str, list[tuple[int, Committed | None]]] = {}
        for (topic, partition), committed in of_group.items():
            found.setdefault(topic, []).append((partition, committed))
        return list(found.items())
