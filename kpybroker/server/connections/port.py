"""The data that all connections of one server share: limits, memory, the flush after read events, and the
dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from kpybroker.broker.broker import Broker
from kpybroker.call import Reply
from kpybroker.metrics import Metrics
from kpybroker.server.connections.accepted import Accepted
from kpybroker.server.connections.connection_limits import ConnectionLimits
from kpybroker.server.connections.receive_memory import ReceiveMemory
from kpybroker.server.connections.refusal_log import RefusalLog
from kpybroker.server.connections.unsent_replies import UnsentReplies
from kpybroker.stalls import Stalls
from kpybroker.wire.api import API

Dispatch = Callable[[Any, memoryview], None]
"""Called with a connection and one request frame. Raises MalformedFrame."""
Encode = Callable[[Reply], Sequence[Any]]
"""Returns the buffers of a complete reply."""


class Port:
    """The part of the server that its connections use. They call `admit` when they open and `forget` when they
    close."""

    dispatch: Dispatch
    encode: Encode

    def __init__(
        self, broker: Broker, metrics: Metrics, admit: Callable[[Any], bool], forget: Callable[[Any], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._flush_queue = broker.replication.flush_queue
        self.admit = admit
        self.forget = forget
        self.metrics = metrics
        self.frame_limit_bytes: int = broker.config.socket_request_max_bytes
        self.urgent_keys = frozenset(api.key for api in API if api.is_urgent)
        self.memory = ReceiveMemory(broker.config.queued_max_request_bytes)
        self.unsent = UnsentReplies(self._loop.time, broker.quotas.limit_fetches)
        self.limits = ConnectionLimits(lambda: broker.config)
        self.refusals = RefusalLog(self.now)
        self.flush: Callable[[], None] = broker.replication.flush_queue.flush
        self.steady_ms: Callable[[], int] = broker.world.steady_ms
        self.give_back: Callable[[Any], None] = broker.world.disk.give_back
        self.stalls: Stalls | None = None
        """Where stalls are counted; None if no metrics are served."""
        self._unflushed: list[Accepted] = []
        self._flush_is_due = False

    @property
    def now(self) -> float:
        """The time of the event loop's clock, in seconds."""
        return self._loop.time()

    def serve(self, dispatch: Dispatch, encode: Encode) -> None:
        """Pass frames to `dispatch` and complete replies to `encode` from now on."""
        self.dispatch, self.encode = dispatch, encode

    def count_stalls(self, stalls: Stalls) -> None:
        """Measure requests from now on."""
        self.stalls = stalls

    def has_unflushed(self) -> bool:
        """Whether batches were appended since the last flush, or replies have to be completed."""
        queue = self._flush_queue
        return bool(queue.dirty or queue.woken)

    def flush_soon(self, connection: Accepted) -> None:
        """Flush after the event loop has read every ready connection, so that one flush writes the data of all."""
        self._unflushed.append(connection)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush_all)

    def flush_all(self) -> None:
        """Write all appended batches, complete replies, and let the waiting connections continue.

        Connections that are added during a flush, because one of their replies was completed, wait for the next flush.
        Their batches have not been written yet, and are still in their receive buffers.
        """
        if self._flush_queue.flushing:
            return
        self._flush_is_due = False
        waited, self._unflushed = self._unflushed, []
        rest = iter(waited)
        try:
            self.flush()
            for connection in rest:
                connection.finish_event()
        finally:
            for connection in rest:  # a bug in the handling of one connection must not affect the others
                self.flush_soon(connection)
