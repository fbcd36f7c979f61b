"""Limits the rate of new connections from each address, to each listener and to the broker (KIP-612).

A connection above the limit of its address is kept open for a while without being served, so that the client does not
retry sooner, and is then closed. A connection above the limit of its listener or of the broker waits until it is
served. In Apache Kafka, the listener's acceptor waits in that case.
"""

from __future__ import annotations

import asyncio
from collections import deque

from kpybroker.broker.broker import Broker
from kpybroker.call import CONTROLLER
from kpybroker.metrics import Metrics
from kpybroker.quotas.rate import Rate
from kpybroker.server.connections.accepted import Accepted
from kpybroker.server.connections.connection_limits import ConnectionLimits
from kpybroker.server.connections.listener import ListenerState
from kpybroker.server.connections.muting import Pause, Pauses

NO_RATE = (1 << 31) - 1
"""The default of max.connection.creation.rate, which means no limit."""


class Arrivals:
    """Applies the rates to all connections to listeners for clients. Nodes of the cluster are not limited."""

    def __init__(self, broker: Broker, metrics: Metrics, limits: ConnectionLimits) -> None:
        self._broker = broker
        self._metrics = metrics
        self._limits = limits
        self.pauses = Pauses()
        self._rate = Rate(broker.quotas.windows)
        self._queues: dict[str, Queue] = {}
        """The queue of each listener, by name."""

    def came(self, connection: Accepted) -> None:
        """Count an accepted connection and delay it if a rate is exceeded. Connections that are closed later count,
        too: the number of open connections has its own limit, max.connections."""
        broker, listener = self._broker, connection.listener
        if listener.side == CONTROLLER or connection.on_probation:
            return
        is_for_brokers = self._limits.is_for_brokers_alone(listener)
        wait_ms = self.wait_ms(connection.host, listener) if listener.counts_rates else 0
        if wait_ms:
            self.pauses.begin(connection)
            asyncio.get_running_loop().call_later(wait_ms / 1000, connection.abort)
            return
        queue = self._queues.get(listener.name)
        if queue is None:
            of_all = None if is_for_brokers else self._rate
            queue = self._queues[listener.name] = Queue(broker, listener.name, of_all)
        if queue.is_limited:
            queue.wait(self.pauses.begin(connection))

    def wait_ms(self, host: str, listener: ListenerState) -> int:
        """Count a connection from an address. Return how long to keep it open without serving it; 0 to serve it."""
        if listener.side == CONTROLLER or self._limits.is_for_brokers_alone(listener):
            return 0
        wait_ms = self._broker.quotas.connected(host)
        if wait_ms:
            self._metrics.connection_throttled()
        return wait_ms


class Queue:
    """The waiting connections of one listener. `of_all` is the rate of the broker, or None if it does not apply."""

    def __init__(self, broker: Broker, listener: str, of_all: Rate | None) -> None:
        self._broker = broker
        self._listener = listener
        self._of_all = of_all
        self._rate = Rate(broker.quotas.windows)
        self._waiting: deque[Pause] = deque()
        self._is_waiting = False
        """Whether a timer is set for the connection that is served next. Later connections wait in the queue."""

    @property
    def is_limited(self) -> bool:
        """Whether a rate is set, or connections are waiting."""
        config = self._broker.config
        limit = config.connection_rate_of(self._listener)
        if self._of_all is not None:
            limit = min(limit, config.max_connection_creation_rate)
        return limit != NO_RATE or bool(self._waiting) or self._is_waiting

    def wait(self, pause: Pause) -> None:
        """Serve the connection when the rate permits."""
        self._waiting.append(pause)
        if not self._is_waiting:
            self._next()

    def _next(self) -> None:
        """Serve the connections that the rate permits now, and set a timer for the next one."""
        quotas = self._broker.quotas
        self._is_waiting = False
        while self._waiting:
            pause = self._waiting.popleft()
            if pause.done:
                continue
            wait_ms = min(self._wait_ms(quotas.now_ms()), quotas.windows.size_ms)
            if wait_ms:
                self._is_waiting = True
                asyncio.get_running_loop().call_later(wait_ms / 1000, self._let_in, pause)
                return
            pause.end()

    def _wait_ms(self, now_ms: int) -> int:
        """Count one connection. Return how long it has to wait."""
        config = self._broker.config
        limits = [(self._rate, config.connection_rate_of(self._listener))]
        if self._of_all is not None:
            limits.append((self._of_all, config.max_connection_creation_rate))
        for rate, _ in limits:
            rate.record(1, now_ms)
        return max(rate.wait_ms(limit, now_ms) for rate, limit in limits)

    def _let_in(self, pause: Pause) -> None:
        pause.end()
        self._next()
