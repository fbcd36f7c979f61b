"""The listening side of one broker: admission, limits, the read event's one flush, graceful stop."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kpybroker.call import BROKER, CONTROLLER, Reply
from kpybroker.server import dispatch
from kpybroker.server.arriving import Arrivals
from kpybroker.server.connection import Connection
from kpybroker.server.door import Door
from kpybroker.server.throttling import Throttling

if TYPE_CHECKING:
    from kpybroker.broker import Broker
    from kpybroker.world import Listener

log = logging.getLogger(__name__)

SWEEP_EVERY_S = 1.0
STOP_PATIENCE_S = 5.0
STALLED_S = 5.0
"""How long half a frame may keep its memory once others wait for some."""
BUFFERED_LIMIT_BYTES = 512 * 1024 * 1024
"""Receive buffers of all connections together, where queued.max.request.bytes sets no limit."""
ASKED_A_TURN = 50
"""How many connections that wait for memory are asked in one turn of the loop whether they can go on."""
YIELDS_TO = frozenset({2, 3, 8, 9, 10, 11, 12, 13, 14, 23})
"""A parked Fetch gives way to these keys: ListOffsets, Metadata, OffsetForLeaderEpoch and the group APIs."""


class Server:
    """Accepts connections for a broker. `start`, then `stop`; one event loop thread."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.metrics = broker.metrics
        self.frame_limit_bytes: int = broker.config.socket_request_max_bytes
        self.yields_to = YIELDS_TO
        self.buffered_bytes = 0
        """Bytes of all receive buffers beyond the idle ones."""
        self.flush: Callable[[], None] = broker.hosting.flush
        self.give_back: Callable[[Any], None] = broker.world.disk.give_back
        self._unflushed: list[Connection] = []
        self._flush_is_due = False
        self._dispatcher = dispatch.Dispatcher(broker)
        broker.answer_here(self._dispatcher.answer_here)
        self.dispatch = self._dispatcher.run
        self.encode: Callable[[Reply], Sequence[Any]] = dispatch.encode
        self.stand_between = self._dispatcher.stand_between
        self.throttling = Throttling(self, broker.quotas)
        self._arrivals = Arrivals(self)
        self._connections: dict[int, Connection] = {}
        self._per_host: dict[str, int] = {}
        self._accepted = 0
        self._wants_memory: OrderedDict[Connection, None] = OrderedDict()
        self._asks = False
        self._to_ask = 0
        """Of those that want memory, how many are to be asked again before this round ends."""
        self._listeners: list[Listener] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._swept_at = 0.0
        self._stopping = False
        self._doors: list[Door] = []
        self._loop = asyncio.get_running_loop()

    @property
    def now(self) -> float:
        """Monotonic seconds."""
        return self._loop.time()

    async def start(self, host: str, port: int, listener_name: str = "PLAINTEXT", side: str = BROKER) -> int:
        """Listen; returns the port. Raises OSError.

        Other nodes are served at once; clients when the broker is registered and the doors open.
        """
        door = Door(listener_name, side, is_open=side == CONTROLLER)
        self._doors.append(door)
        listener = await self.broker.world.network.listen(lambda: Connection(self, door), host, port)
        self._listeners.append(listener)
        if self._sweeper is None:
            self._swept_at = self.now
            self._sweeper = self._loop.call_later(SWEEP_EVERY_S, self._sweep)
        return listener.port

    def open_the_doors(self) -> None:
        """Serve from now on, those first who came while the broker started."""
        self.broker.quotas.on_change(self.throttling.follow)
        self.throttling.follow()
        for door in self._doors:
            door.is_open = True
        for connection in self.connections():
            connection.go_on()

    async def stop(self) -> None:
        """Stop accepting, answer what is parked, wait a little for replies, close."""
        self._stopping = True
        for listener in self._listeners:
            listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for pauses in (self.throttling.pauses, self._arrivals.pauses):
            pauses.stop()
        for connection in self.connections():
            connection.stop_gracefully()
        deadline = self.now + STOP_PATIENCE_S
        while self._connections and self.now < deadline:
            await asyncio.sleep(0.01)
            for connection in self.connections():
                connection.stop_gracefully()
        await self._dispatcher.stop()
        for connection in self.connections():
            connection.abort()

    def connections(self) -> list[Connection]:
        """Those open now."""
        return list(self._connections.values())

    # ---- the connections' side

    def has_unflushed(self) -> bool:
        """Whether anything was appended, or is to be settled, since the last flush."""
        hosting = self.broker.hosting
        return bool(hosting.dirty or hosting.woken)

    def flush_soon(self, connection: Connection) -> None:
        """Flush when every connection that is ready now has been read: one write serves them all."""
        self._unflushed.append(connection)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush_all)

    def flush_all(self) -> None:
        """Write what was appended, settle, and let the connections that waited for it go on.

        Those that come while a flush settles (a reply makes a connection go on) wait for the next: what they appended
        is not written yet, and still lies in their receive buffers.
        """
        if self.broker.hosting.flushing:
            return
        self._flush_is_due = False
        waited, self._unflushed = self._unflushed, []
        rest = iter(waited)
        try:
            self.flush()
            for connection in rest:
                connection.finish_event()
        finally:
            for connection in rest:  # a bug in one of them is not the others'
                self.flush_soon(connection)

    def admit(self, connection: Connection) -> bool:
        """Whether a new connection may stay (max.connections, max.connections.per.ip)."""
        config, host = self.broker.config, connection.host
        here = self._per_host.get(host, 0)
        if self._stopping or len(self._connections) >= config.max_connections or here >= config.connections_from(host):
            self.metrics.connections_refused += 1
            if not self._stopping:
                log.warning(
                    "refused connection from %s: max.connections or max.connections.per.ip reached", connection.peer
                )
            return False
        self._accepted += 1
        self.metrics.connections_accepted += 1
        connection.number = self._accepted
        connection.quiet_since = self.now
        self._connections[connection.number] = connection
        self._per_host[host] = here + 1
        self._arrivals.came(connection)
        return True

    def forget(self, connection: Connection) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        self._count_bytes(connection)
        self.broker.presence.closed(connection.number)
        left = self._per_host[connection.host] - 1
        if left:
            self._per_host[connection.host] = left
        else:
            del self._per_host[connection.host]
        self._give_memory()

    def _count_bytes(self, connection: Connection) -> bool:
        """Take over what a connection has counted; whether bytes came."""
        received, connection.received_bytes = connection.received_bytes, 0
        self.metrics.bytes_received += received
        self.metrics.bytes_sent += connection.sent_bytes
        connection.sent_bytes = 0
        return received > 0

    def count_bytes(self) -> None:
        """Bring the counters up to date."""
        for connection in self.connections():
            if self._count_bytes(connection):
                connection.quiet_since = self.now

    def requests_by_api(self) -> list[tuple[str, int]]:
        """How many requests of each kind have come."""
        return [(route.api.name, route.count) for route in self._dispatcher.routes.values()]

    def reserve(self, connection: Connection, size_bytes: int) -> bool:
        """Whether the buffers may grow by so much (queued.max.request.bytes); else the connection is called later.

        One large frame is always let through, or a limit below its size would stop everything.
        """
        limit = self.broker.config.queued_max_request_bytes
        if limit <= 0:
            limit = BUFFERED_LIMIT_BYTES
        if self.buffered_bytes <= 0 or self.buffered_bytes + size_bytes <= limit:
            return True
        self._wants_memory[connection] = None
        return False

    def _give_memory(self) -> None:
        """Ask all that want memory once more: soon, and in steps, since each connection that closes calls for it."""
        self._to_ask = len(self._wants_memory)
        if self._to_ask and not self._asks:
            self._asks = True
            self._loop.call_soon(self._ask_again)

    def _ask_again(self) -> None:
        for _ in range(min(self._to_ask, len(self._wants_memory), ASKED_A_TURN)):
            self._to_ask -= 1
            self._wants_memory.popitem(last=False)[0].go_on()
        self._asks = bool(self._to_ask and self._wants_memory)
        if self._asks:
            self._loop.call_soon(self._ask_again)

    def _sweep(self) -> None:
        """Once a second: shrink idle buffers, close connections idle for connections.max.idle.ms, note a stall."""
        now = self.now
        late_ms = (now - self._swept_at - SWEEP_EVERY_S) * 1000
        self.metrics.worst_stall_ms = max(self.metrics.worst_stall_ms, late_ms)
        idle_ms = self.broker.config.connections_max_idle_ms
        for connection in self.connections():
            if self._count_bytes(connection):
                connection.quiet_since = now
                continue
            quiet_s = now - connection.quiet_since
            connection.shrink()
            if quiet_s >= STALLED_S and self._wants_memory and connection.is_stalled:
                connection.refuse_frame(f"half a frame for {quiet_s:.0f} s while others wait for memory")
                continue
            if 0 <= idle_ms < quiet_s * 1000 and connection.is_quiet:
                connection.close()
        self._give_memory()
        self._swept_at = now
        self._sweeper = self._loop.call_later(SWEEP_EVERY_S, self._sweep)
