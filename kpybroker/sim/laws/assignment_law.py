"""Who has which partition in a group of the consumer protocol (KIP-848): never two at the same time.

A member has what it was given until it sends that it gave it up, or has left; and the coordinator may count it out no
earlier than a session after the last heartbeat it was answered was sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from kpybroker.sim.world.history import History, Place


class Shares:
    """Of one group. `session_s`: how long the coordinator waits for members, whatever is done to its clock."""

    def __init__(self, history: History, group: str, session_s: float) -> None:
        self._history = history
        self._group = group
        self._session_s = session_s
        self._until_s: dict[Place, dict[str, float]] = {}
        """Until when nobody else may have it, by member."""

    def has(self, member: str, places: Iterable[Place], sent_at_s: float) -> None:
        """A heartbeat of that time has been answered, and the member goes on with these, or begins."""
        now_s, until_s = self._history.now_s, sent_at_s + self._session_s
        for place in places:
            holders = self._until_s.setdefault(place, {})
            if until_s > now_s:
                for other, others_until_s in holders.items():
                    if other != member and others_until_s > now_s:
                        self._history.breach(f"{member} and {other} both have {place[0]}-{place[1]} in {self._group}")
            holders[member] = until_s

    def gives_up(self, member: str, places: Iterable[Place]) -> None:
        """Before it says so to anybody."""
        for place in places:
            self._until_s.get(place, {}).pop(member, None)

    def without_owner(self, places: Iterable[Place]) -> list[Place]:
        """Those that nobody has said to have."""
        return [place for place in places if not self._until_s.get(place)]
