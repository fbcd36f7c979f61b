"""How far the other nodes have applied the metadata, as their fetches say (KIP-1166), and who waits for them.

What the controller has decided is there for a client when every live broker has applied it, which Kafka leaves to
chance: the client asks another broker than the one that answered, and is told that there is no such topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

NODES_MAX = 1000
"""Who has not fetched for longest is forgotten for another."""
WAITERS_MAX = 10_000
"""More are not made to wait."""


class Followed:
    """Kept by the leader of the quorum; empty on every other node."""

    def __init__(self) -> None:
        self._applied: dict[int, int] = {}
        """Node id -> everything below this offset is committed and applied there; who fetched last is last."""
        self._waiting: dict[asyncio.Future[None], tuple[int, Callable[[], Iterable[int]]]] = {}

    def applied(self, node_id: int) -> int:
        """The last offset that a node has said it applied; -1 where it has said nothing in this epoch."""
        return self._applied.get(node_id, 0) - 1

    def note(self, node_id: int, end: int) -> None:
        """A node has applied all below `end`."""
        before = self._applied.pop(node_id, None)
        if before is None and len(self._applied) >= NODES_MAX:
            del self._applied[next(iter(self._applied))]
        known = -1 if before is None else before
        self._applied[node_id] = max(end, known)
        if end > known:
            self._settle()

    def forget_all(self) -> None:
        """This node no longer leads: end every wait."""
        self._applied.clear()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def by(self, nodes: Callable[[], Iterable[int]], end: int, timeout_ms: int) -> None:
        """Until all these nodes have applied what is below `end`, or the time is over. `nodes` may change meanwhile."""
        if self._reached(nodes, end) or len(self._waiting) >= WAITERS_MAX:
            return
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(timeout_ms / 1000, self._give_up, waiting)
        self._waiting[waiting] = (end, nodes)
        try:
            await waiting
        finally:
            timer.cancel()
            del self._waiting[waiting]

    def look_again(self) -> None:
        """The nodes that count may be others now."""
        self._settle()

    def _reached(self, nodes: Callable[[], Iterable[int]], end: int) -> bool:
        return all(self._applied.get(node_id, -1) >= end for node_id in nodes())

    def _settle(self) -> None:
        for waiting, (end, nodes) in list(self._waiting.items()):
            if not waiting.done() and self._reached(nodes, end):
                waiting.set_result(None)

    @staticmethod
    def _give_up(waiting: asyncio.Future[None]) -> None:
        if not waiting.done():
            waiting.set_result(None)
