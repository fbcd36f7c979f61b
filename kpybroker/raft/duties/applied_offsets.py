"""Tracks how far other nodes have applied the metadata, according to their fetches (KIP-1166), and lets requests wait
for them.

A request that creates a topic waits until every live broker has applied its records. Apache Kafka does not wait, so
that a client that sends its next request to another broker may get UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

NODES_MAX = 1000
"""The most nodes that are remembered; beyond this, the node that fetched least recently is forgotten."""
WAITERS_MAX = 10_000
"""The most requests that wait. Further requests get their response without waiting."""


class AppliedOffsets:
    """The offsets that other nodes have applied, as the leader knows them. On any other node this is empty."""

    def __init__(self) -> None:
        self._applied: dict[int, int] = {}
        """Node id -> the offset below which it has applied every record. The node that fetched most recently is the
        last one."""
        self._waiting: dict[asyncio.Future[None], tuple[int, Callable[[], Iterable[int]]]] = {}

    def applied(self, node_id: int) -> int:
        """The last offset that a node has reported as applied in this epoch; -1 if there is none."""
        return self._applied.get(node_id, 0) - 1

    def note(self, node_id: int, end: int) -> None:
        """Record that a node has applied every record below `end`."""
        before = self._applied.pop(node_id, None)
        if before is None and len(self._applied) >= NODES_MAX:
            del self._applied[next(iter(self._applied))]
        known = -1 if before is None else before
        self._applied[node_id] = max(end, known)
        if end > known:
            self._settle()

    def forget_all(self) -> None:
        """Forget all offsets, and end the wait of all requests, because this node no longer leads."""
        self._applied.clear()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self, nodes: Callable[[], Iterable[int]], end: int, timeout_ms: int) -> None:
        """Wait until all of `nodes()` have applied every record below `end`, or the timeout has passed."""
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
        """Check the waiting requests again, because the result of `nodes()` may have changed."""
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
