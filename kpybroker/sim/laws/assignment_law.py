"""Checks that a partition never has two owners at the same time in a group of the consumer protocol (KIP-848).

A member owns its assigned partitions until it reports that it has revoked them, or leaves. The coordinator may fence a
member no earlier than one session timeout after the member sent the last heartbeat that had a response.
"""

from __future__ import annotations

from collections.abc import Iterable

from kpybroker.sim.world.history import History
from kpybroker.topics import TopicPartition


class PartitionOwnership:
    """The owners of partitions in one group. `session_s`: the session timeout, in seconds of a clock that is never
    changed."""

    def __init__(self, history: History, group: str, session_s: float) -> None:
        self._history = history
        self._group = group
        self._session_s = session_s
        self._until_s: dict[TopicPartition, dict[str, float]] = {}
        """The time until which no other member may own a partition, by partition and member."""

    def owns(self, member: str, places: Iterable[TopicPartition], sent_at_s: float) -> None:
        """Record that a heartbeat sent at this time had a response, and that the member owns these partitions."""
        now_s, until_s = self._history.now_s, sent_at_s + self._session_s
        for place in places:
            holders = self._until_s.setdefault(place, {})
            if until_s > now_s:
                for other, others_until_s in holders.items():
                    if other != member and others_until_s > now_s:
                        self._history.breach(f"{member} and {other} both own {place[0]}-{place[1]} in {self._group}")
            holders[member] = until_s

    def revokes(self, member: str, places: Iterable[TopicPartition]) -> None:
        """Record that the member revokes these partitions. Must be called before the member sends its heartbeat."""
        for place in places:
            self._until_s.get(place, {}).pop(member, None)

    def without_owner(self, places: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions in `places` that no member owns."""
        return [place for place in places if not self._until_s.get(place)]
