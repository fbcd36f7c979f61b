"""Stores offsets that were committed within open transactions (KIP-447). They are hard state, which only `apply`
changes.

They take effect with the transaction's marker, but with their own position in the log: they do not overwrite a later
commit of the same offset, whether plain or in another transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kpybroker.groups.offsets.committed import Committed
from kpybroker.topics import TopicPartition


class PendingOffset(NamedTuple):
    """One offset, and its position in the log."""

    record_offset: int
    committed: Committed


OfProducer = dict[str, dict[TopicPartition, PendingOffset | None]]
"""The pending offsets by group id and by partition; None if a later commit has already taken effect."""


class PendingOffsets:
    """Pending offsets by producer id."""

    __slots__ = ("_groups", "_open")

    def __init__(self) -> None:
        self._open: dict[int, OfProducer] = {}
        self._groups: dict[str, dict[int, None]] = {}
        """The producers with pending offsets, by group id."""

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, producer_id: int, group_id: str, place: TopicPartition, pending: PendingOffset) -> None:
        """Add an offset. If a producer adds an offset of the same partition twice, the later value is used."""
        self._open.setdefault(producer_id, {}).setdefault(group_id, {})[place] = pending
        self._groups.setdefault(group_id, {})[producer_id] = None

    def end(self, producer_id: int) -> list[tuple[str, TopicPartition, PendingOffset]]:
        """Remove a producer's offsets, because its transaction has ended. Returns them, except those that a later
        commit has replaced."""
        groups = self._open.pop(producer_id, {})
        found = []
        for group_id, places in groups.items():
            producers = self._groups[group_id]
            del producers[producer_id]
            if not producers:
                del self._groups[group_id]
            found += [(group_id, place, pending) for place, pending in places.items() if pending is not None]
        return found

    def supersede(self, group_id: str, place: TopicPartition, record_offset: int) -> None:
        """Discard pending offsets before the commit at `record_offset`, which takes effect."""
        for producer_id in self._groups.get(group_id, ()):
            places = self._open[producer_id][group_id]
            pending = places.get(place)
            if pending is not None and pending.record_offset < record_offset:
                places[place] = None

    def forget(self, group_id: str, place: TopicPartition) -> None:
        """Discard pending commits of an offset that was deleted."""
        for producer_id in list(self._groups.get(group_id, ())):
            groups = self._open[producer_id]
            groups[group_id].pop(place, None)
            if not groups[group_id]:
                del groups[group_id], self._groups[group_id][producer_id]
            if not groups:
                del self._open[producer_id]
        if not self._groups.get(group_id, True):
            del self._groups[group_id]

    def has(self, group_id: str, place: TopicPartition) -> bool:
        """Whether the offset is unstable, because an open transaction may change it."""
        return any(place in self._open[producer_id][group_id] for producer_id in self._groups.get(group_id, ()))

    def of(self, group_id: str) -> list[TopicPartition]:
        """Every partition with a pending offset."""
        producers = self._groups.get(group_id, ())
        return list(dict.fromkeys(place for producer_id in producers for place in self._open[producer_id][group_id]))

    def groups(self) -> Iterator[str]:
        return iter(self._groups)
