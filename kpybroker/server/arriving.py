"""How fast connections may come: from one address (KIP-612), and altogether (max.connection.creation.rate).

Who comes too often from an address is held unserved, so that its next attempt is not sooner, and then closed. What is
too fast altogether waits for its turn, which in Apache Kafka the acceptor does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from kpybroker.call import CONTROLLER
from kpybroker.quotas.rate import Rate
from kpybroker.server.pausing import Pause, Pauses

if TYPE_CHECKING:
    from kpybroker.server.connection import Connection
    from kpybroker.server.server import Server

NO_RATE = (1 << 31) - 1
"""The default of max.connection.creation.rate: no limit."""


class Arrivals:
    """Looks at every connection to a listener for clients; nodes of the cluster come when they want."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.pauses = Pauses()
        self._rate = Rate(server.broker.quotas.windows)
        self._waiting: deque[Pause] = deque()
        self._is_waiting = False
        """The first in the queue waits for its time; the others wait for it."""

    def came(self, connection: Connection) -> None:
        """A connection was accepted. It counts as one, whatever becomes of it: max.connections limits what is held."""
        broker, door = self._server.broker, connection.door
        if door.side == CONTROLLER or self._is_of_brokers(door.listener):
            return
        wait_ms = broker.quotas.connected(connection.host)
        if wait_ms:
            self._server.metrics.connections_throttled += 1
            self.pauses.begin(connection)
            asyncio.get_running_loop().call_later(wait_ms / 1000, connection.abort)
        elif broker.config.max_connection_creation_rate != NO_RATE or self._waiting or self._is_waiting:
            self._waiting.append(self.pauses.begin(connection))
            if not self._is_waiting:
                self._next()

    def _is_of_brokers(self, listener: str) -> bool:
        """Where the cluster has a listener to itself, no client can keep brokers from one another."""
        config = self._server.broker.config
        return len(config.listeners) > 1 and listener == config.inter_broker_listener_name

    def _next(self) -> None:
        """Let in who may come in now; the next one waits until it may."""
        broker = self._server.broker
        quotas, limit = broker.quotas, broker.config.max_connection_creation_rate
        self._is_waiting = False
        while self._waiting:
            pause = self._waiting.popleft()
            if pause.done:
                continue
            now_ms = quotas.now_ms()
            self._rate.record(1, now_ms)
            wait_ms = min(self._rate.wait_ms(limit, now_ms), quotas.windows.size_ms)
            if wait_ms:
                self._is_waiting = True
                asyncio.get_running_loop().call_later(wait_ms / 1000, self._let_in, pause)
                return
            pause.end()

    def _let_in(self, pause: Pause) -> None:
        pause.end()
        self._next()
