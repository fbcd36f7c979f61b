"""Limits the total size of replies that clients have not read yet.

A connection above its transport's high-water mark sends no more replies, so that it holds at most one large reply. Near
the limit, Fetch responses become smaller. At the limit, the connection with the most unsent bytes is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

LIMIT_BYTES = 256 * 1024 * 1024
"""The limit on the total unsent bytes of the connections that are above their transport's high-water mark."""
TIGHT_BYTES = LIMIT_BYTES // 2
"""Above this total, a Fetch returns at most SMALL_FETCH_BYTES."""
SMALL_FETCH_BYTES = 1024 * 1024
STUCK_S = 1.0
"""Connections that have sent nothing for this long are closed before slow connections."""


class Sender(Protocol):
    """The part of a connection that is used here."""

    @property
    def unsent_bytes(self) -> int:
        """The bytes that the transport has not sent yet."""

    @property
    def stuck_since(self) -> float:
        """The time since which no unsent byte has been sent, by the event loop's clock."""

    def drop(self, why: str) -> None:
        """Close at once, without sending the remaining replies, and log the reason."""


class UnsentReplies:
    """The connections above their high-water mark. `limit_fetches` is called with the maximum size of Fetch responses,
    or with None for no limit."""

    def __init__(self, now: Callable[[], float], limit_fetches: Callable[[int | None], None]) -> None:
        self._now = now
        self._limit_fetches = limit_fetches
        self._held: dict[Sender, int] = {}
        self.total_bytes = 0
        self._is_tight = False

    def hold(self, sender: Sender) -> None:
        """Count a connection that is above its high-water mark, or has more to send than before."""
        size_bytes = sender.unsent_bytes
        self.total_bytes += size_bytes - self._held.get(sender, 0)
        self._held[sender] = size_bytes
        if self.total_bytes > LIMIT_BYTES:
            self._make_room()
        self._follow()

    def release(self, sender: Sender) -> None:
        """Remove a connection that has sent nearly all its replies, or is closed."""
        self.total_bytes -= self._held.pop(sender, 0)
        self._follow()

    def look(self) -> None:
        """Update the sizes. Called once a second."""
        for sender in self._held:
            self._held[sender] = sender.unsent_bytes
        self.total_bytes = sum(self._held.values())
        self._follow()

    def _make_room(self) -> None:
        """Update the sizes, and close connections until the total is below the limit: first connections that send
        nothing, and among them those with the most unsent bytes."""
        self.look()
        since = self._now() - STUCK_S
        while self.total_bytes > LIMIT_BYTES:
            worst = max(self._held, key=lambda sender: (sender.stuck_since <= since, self._held[sender]))
            self.total_bytes -= self._held.pop(worst)
            worst.drop(
                f"it does not read its replies, and the unsent replies of all clients exceed {LIMIT_BYTES} bytes"
            )

    def _follow(self) -> None:
        is_tight = self.total_bytes > TIGHT_BYTES
        if is_tight != self._is_tight:
            self._is_tight = is_tight
            self._limit_fetches(SMALL_FETCH_BYTES if is_tight else None)
