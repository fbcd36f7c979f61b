"""Stores the committed offsets of one partition's groups. They are hard state, which only `apply` changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kpybroker.errors import ErrorCode
from kpybroker.groups.offsets.committed import Committed
from kpybroker.groups.offsets.pending import PendingOffset, PendingOffsets
from kpybroker.topics import TopicPartition

Shown = Committed | ErrorCode | None
"""The result of OffsetFetch for a partition; None if nothing is committed."""


class Offsets:
    """The committed offsets by group id, and by (topic, partition) within a group."""

    __slots__ = ("_groups", "pending")

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, Committed]] = {}
        self.pending = PendingOffsets()

    def apply(
        self,
        group_id: str,
        place: TopicPartition,
        committed: Committed | None,
        record_offset: int = -1,
        transaction: tuple[int, int] | None = None,
    ) -> None:
        """Store an offset, or delete it if `committed` is None. Within a transaction, it takes effect when the
        transaction commits."""
        if committed is not None:
            if transaction is not None:
                self.pending.add(transaction[0], group_id, place, PendingOffset(record_offset, committed))
                return
            if self.pending:
                self.pending.supersede(group_id, place, record_offset)
            of_group = self._groups.get(group_id)
            if of_group is None:
                of_group = self._groups[group_id] = {}
            of_group[place] = committed
            return
        self.pending.forget(group_id, place)
        of_group = self._groups.get(group_id)
        if of_group is not None:
            of_group.pop(place, None)
            if not of_group:
                del self._groups[group_id]

    def end(self, producer_id: int, *, commits: bool) -> None:
        """End a producer's transaction: its offsets take effect if it commits."""
        for group_id, place, pending in self.pending.end(producer_id):
            if commits:
                self.apply(group_id, place, pending.committed, pending.record_offset)

    def of(self, group_id: str) -> dict[TopicPartition, Committed]:
        """All offsets of a group. The mapping must not be changed."""
        return self._groups.get(group_id, {})

    def groups(self) -> Iterator[str]:
        return iter(self._groups)

    def fetch(
        self, group_id: str, topics: Sequence[tuple[str, Sequence[int]]] | None, require_stable: bool = False
    ) -> list[tuple[str, list[tuple[int, Shown]]]]:
        """The requested offsets in order, or all offsets of the group if `topics` is None. A partition without an
        offset has None.

        With `require_stable`, UNSTABLE_OFFSET_COMMIT replaces the offsets that an open transaction may change
        (KIP-447).
        """
        of_group: Mapping[TopicPartition, Shown] = self.of(group_id)
        if require_stable and (undecided := self.pending.of(group_id)):
            wanted = undecided if topics is not None else [place for place in undecided if place in of_group]
            of_group = {**of_group, **dict.fromkeys(wanted, ErrorCode.UNSTABLE_OFFSET_COMMIT)}
        if topics is not None:
            return [
                (topic, [(partition, of_group.get((topic, partition))) for partition in partitions])
                for topic, partitions in topics
            ]
        found: dict[str, list[tuple[int, Shown]]] = {}
        for (topic, partition), committed in of_group.items():
            found.setdefault(topic, []).append((partition, committed))
        return list(found.items())
