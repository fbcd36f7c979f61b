"""Limits the replies of all connections that their clients have not read yet.

A connection above its transport's high-water mark gets no more replies, so that each holds one large reply at most.
Near the limit, Fetch responses become smaller; at the limit, the connection that holds the most is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

LIMIT_BYTES = 256 * 1024 * 1024
"""The limit on unsent replies of all connections above their transport's high-water mark."""
TIGHT_BYTES = LIMIT_BYTES // 2
"""From here on, a Fetch returns at most SMALL_FETCH_BYTES."""
SMALL_FETCH_BYTES = 1024 * 1024
STUCK_S = 1.0
"""A connection that has sent nothing for this long is closed before slow ones."""


class Sender(Protocol):
    """The part of a connection that is used here."""

    @property
    def unsent_bytes(self) -> int:
        """The bytes that the transport has not sent yet."""

    @property
    def stuck_since(self) -> float:
        """Since when no unsent byte has been sent, by the loop's clock."""

    def drop(self, why: str) -> None:
        """Close at once, without sending the remaining replies, and log the reason."""


class UnsentReplies:
    """The connections above their high-water mark. `limit_fetches` is called with the most bytes of a Fetch; None: no
    limit."""

    def __init__(self, now: Callable[[], float], limit_fetches: Callable[[int | None], None]) -> None:
        self._now = now
        self._limit_fetches = limit_fetches
        self._held: dict[Sender, int] = {}
        self.total_bytes = 0
        self._is_tight = False

    def hold(self, sender: Sender) -> None:
        """This connection is above its high-water mark, or has been given more to send."""
        size_bytes = sender.unsent_bytes
        self.total_bytes += size_bytes - self._held.get(sender, 0)
        self._held[sender] = size_bytes
        if self.total_bytes > LIMIT_BYTES:
            self._make_room()
        self._follow()

    def release(self, sender: Sender) -> None:
        """The connection has sent nearly all its replies, or is closed."""
        self.total_bytes -= self._held.pop(sender, 0)
        self._follow()

    def look(self) -> None:
        """Update the sizes, once a second."""
        for sender in self._held:
            self._held[sender] = sender.unsent_bytes
        self.total_bytes = sum(self._held.values())
        self._follow()

    def _make_room(self) -> None:
        """Update the sizes, then close the connections with the most unsent bytes, first those that send nothing."""
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
