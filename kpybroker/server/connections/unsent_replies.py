"""Replies that were handed over and have not left yet: of all connections together, they have a limit.

A connection with more unsent than its transport's high-water mark gets nothing more, so that each holds one large reply
at most. Near the limit Fetches bring less; at the limit the connection that costs the most is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

LIMIT_BYTES = 256 * 1024 * 1024
"""Unsent replies of all connections that are above their transport's high-water mark."""
TIGHT_BYTES = LIMIT_BYTES // 2
"""From here on a Fetch brings SMALL_FETCH_BYTES at most."""
SMALL_FETCH_BYTES = 1024 * 1024
STUCK_S = 1.0
"""Nothing has left for so long: closed before others that are slow."""


class Sender(Protocol):
    """A connection, as this sees it."""

    @property
    def unsent_bytes(self) -> int:
        """What was handed over and has not left."""

    @property
    def stuck_since(self) -> float:
        """Nothing has left since then, by the loop's clock."""

    def drop(self, why: str) -> None:
        """Close at once, what is owed is lost; says why in the log."""


class UnsentReplies:
    """The senders above their high-water mark. `limit_fetches` gets the most bytes that a Fetch brings; None: any."""

    def __init__(self, now: Callable[[], float], limit_fetches: Callable[[int | None], None]) -> None:
        self._now = now
        self._limit_fetches = limit_fetches
        self._held: dict[Sender, int] = {}
        self.total_bytes = 0
        self._is_tight = False

    def hold(self, sender: Sender) -> None:
        """This one is above its high-water mark, or has got more to send."""
        size_bytes = sender.unsent_bytes
        self.total_bytes += size_bytes - self._held.get(sender, 0)
        self._held[sender] = size_bytes
        if self.total_bytes > LIMIT_BYTES:
            self._make_room()
        self._follow()

    def release(self, sender: Sender) -> None:
        """It has sent nearly all, or is gone."""
        self.total_bytes -= self._held.pop(sender, 0)
        self._follow()

    def look(self) -> None:
        """Bring the sizes up to date: once a second."""
        for sender in self._held:
            self._held[sender] = sender.unsent_bytes
        self.total_bytes = sum(self._held.values())
        self._follow()

    def _make_room(self) -> None:
        """Update the sizes, then drop the senders with the most, first those whose replies are stuck."""
        self.look()
        since = self._now() - STUCK_S
        while self.total_bytes > LIMIT_BYTES:
            worst = max(self._held, key=lambda sender: (sender.stuck_since <= since, self._held[sender]))
            self.total_bytes -= self._held.pop(worst)
            worst.drop(f"it does not read its replies, and those of all clients are above {LIMIT_BYTES} bytes")

    def _follow(self) -> None:
        is_tight = self.total_bytes > TIGHT_BYTES
        if is_tight != self._is_tight:
            self._is_tight = is_tight
            self._limit_fetches(SMALL_FETCH_BYTES if is_tight else None)
