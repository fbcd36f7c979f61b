"""The server of one node: it listens, admits connections, checks them once a second, and stops gracefully."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from kpybroker.broker.broker import Broker
from kpybroker.call import BROKER, CONTROLLER, TaskReply
from kpybroker.metrics import Metrics
from kpybroker.server.connections.connection import Connection
from kpybroker.server.connections.connection_rate import Arrivals
from kpybroker.server.connections.listener import ListenerState
from kpybroker.server.connections.port import Port
from kpybroker.server.connections.secure_listeners import SecureListening
from kpybroker.server.requests import dispatch
from kpybroker.server.requests.interceptors import Interceptors
from kpybroker.server.requests.throttling import Throttling
from kpybroker.server.requests.timing import Timing
from kpybroker.world import Listener
from kpybroker.world.hang_ups import has_hung_up
from kpybroker.world.secure import HANDSHAKES_MAX, TlsAcceptor

if TYPE_CHECKING:
    from kpybroker.server.connections.token_checks import ListenerTokens
    from kpybroker.server.requests.faults import Faults
    from kpybroker.server.requests.recorder import Recorder
    from kpybroker.stalls import Stalls

NO_TOKENS: Mapping[str, ListenerTokens] = MappingProxyType({})
SWEEP_EVERY_S = 1.0
STOP_PATIENCE_S = 5.0
LOOKED_AT_A_TURN = 2000
"""How many connections are checked in one turn of the event loop, which takes a few milliseconds."""


class Server:
    """Accepts connections for a broker. Call `start`, then `stop`. Everything runs on the thread of the event loop."""

    def __init__(self, broker: Broker, tokens: Mapping[str, ListenerTokens] = NO_TOKENS) -> None:
        """`tokens` contains the token checks of OAUTHBEARER listeners, by listener name."""
        self.broker = broker
        self._tokens = tokens
        self.metrics = Metrics()
        self._loop = asyncio.get_running_loop()
        self.port = port = Port(broker, self.metrics, self.admit, self.forget)
        self.memory, self.unsent, self.limits, self.refusals = port.memory, port.unsent, port.limits, port.refusals
        broker.long_work.limit_queue(self.memory.queue_max_bytes)
        self.dispatcher = dispatch.Dispatcher(broker, self.limits)
        broker.answer_here(self.dispatcher.answer_here)
        self._interceptors = Interceptors(self.dispatcher.run, dispatch.encode, port.serve)
        self.throttling = Throttling(broker, self.metrics, self.dispatcher.stand_between, self._interceptors.follow)
        self._interceptors.add(self.throttling)
        self._faults: Faults | None = None
        self._recorder: Recorder | None = None
        self._arrivals = Arrivals(broker, self.metrics, self.limits)
        self._connections: dict[int, Connection] = {}
        self._accepted = 0
        self._listeners: list[Listener] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._stopping = False
        self._states: list[ListenerState] = []

    @property
    def now(self) -> float:
        """The time of the event loop's clock, in seconds."""
        return self._loop.time()

    async def start(
        self,
        host: str,
        port: int,
        listener_name: str = "PLAINTEXT",
        side: str = BROKER,
        secure: SecureListening | None = None,
    ) -> int:
        """Listen, and return the port. Raises OSError.

        Controller listeners serve at once, and the other listeners when `begin_serving` is called.
        """
        state = ListenerState(listener_name, side, is_open=side == CONTROLLER)
        tls = None
        if secure is not None:
            state = replace(state, principal_of=secure.principal_of, counts_rates=False)
            tls = TlsAcceptor(
                secure.context,
                self._refuse_handshake,
                self._tls_broke,
                partial(self._before, state),
                handshakes_max=HANDSHAKES_MAX,
            )
        self._states.append(state)
        listener = await self.broker.world.network.listen(self._factory(state), host, port, tls)
        self._listeners.append(listener)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_EVERY_S, self._sweep)
        return listener.port

    def _factory(self, state: ListenerState) -> Callable[[], Connection]:
        """The function that creates the connections of a listener. The modules of logins are imported only if it has
        them."""
        settings = self.broker.config.sasl_listeners.get(state.name)
        if settings is None:
            return partial(Connection, self.port, state)
        from kpybroker.server.connections.logging_in import ListenerLogin, LoginConnection

        tokens = self._tokens.get(state.name)
        if tokens is not None and tokens.follow is not None:
            self.broker.background.begin(f"the keys of tokens of listener {state.name}", tokens.follow())
        login = ListenerLogin(self.broker, settings, None if tokens is None else tokens.check)
        return partial(LoginConnection, self.port, state, login)

    def _refuse_handshake(self, host: str, why: str) -> None:
        self.metrics.connection_refused()
        self.refusals.tell(host, "refused connection from %s in the TLS handshake: %s", host, why)

    def _tls_broke(self, host: str, why: str) -> None:
        self.metrics.connection_dropped()
        self.refusals.tell(host, "dropped connection from %s: TLS failed after the handshake: %s", host, why)

    def _before(self, state: ListenerState, host: str) -> float | None:
        """Called before the TLS handshake of a connection. Return None to serve the connection, or the number of
        seconds after which to close it. As in Apache Kafka, a connection that is refused or delayed by a limit has no
        handshake.
        """
        reached = "the end of the broker" if self._stopping else self.limits.early(host, state)
        if reached is not None:
            self.metrics.connection_refused()
            self.refusals.tell(host, "refused connection from %s: %s reached", host, reached)
            return 0
        wait_ms = self._arrivals.wait_ms(host, state)
        return wait_ms / 1000 if wait_ms else None

    @property
    def faults(self) -> Faults:
        """The faults that tests inject. The first use adds the interceptor, inside all others."""
        if self._faults is None:
            from kpybroker.server.requests.faults import Faults

            self._faults = Faults(self.broker, self._interceptors.follow)
            self._interceptors.add(self._faults)
        return self._faults

    @property
    def recorder(self) -> Recorder:
        """Records requests for tests. The first use adds the interceptor, around all others."""
        if self._recorder is None:
            from kpybroker.server.requests.recorder import Recorder

            self._recorder = Recorder(self.broker.world.wall_ms, self._interceptors.follow)
            self._interceptors.add_outermost(self._recorder)
        return self._recorder

    def watch(self, timing: Timing, stalls: Stalls) -> None:
        """Measure request times, and count stalls, from now on."""
        self._interceptors.add_outermost(timing)
        self.port.count_stalls(stalls)
        self.broker.count_stalls(stalls)

    def begin_serving(self) -> None:
        """Serve requests from now on, beginning with connections that were opened during the start."""
        self.broker.quotas.on_change(self.throttling.follow)
        self.throttling.follow()
        for state in self._states:
            state.open()
        for connection in self.connections():
            connection.go_on()

    async def stop(self) -> None:
        """Stop accepting connections, complete waiting requests, wait a while for replies to be sent, and close."""
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
        await self.dispatcher.stop()
        for connection in self.connections():
            connection.abort()
        self.refusals.sum_up()

    def break_off(self) -> None:
        """Close all listeners and connections at once, as the end of the process does."""
        self._stopping = True
        for listener in self._listeners:
            listener.close()
        for connection in self.connections():
            connection.abort()

    def connections(self) -> list[Connection]:
        """The open connections."""
        return list(self._connections.values())

    # ---- called by the connections

    def admit(self, connection: Connection) -> bool:
        """Whether a new connection may stay."""
        if self._stopping:
            self.metrics.connection_refused()
            return False
        reached = self.limits.admit(connection, self.now)
        if reached is not None:
            self.metrics.connection_refused()
            self.refusals.tell(connection.host, "refused connection from %s: %s reached", connection.peer, reached)
            return False
        self._accepted += 1
        self.metrics.connection_accepted()
        connection.admitted(self._accepted)
        self._connections[connection.number] = connection
        self._arrivals.came(connection)
        return True

    def forget(self, connection: Connection) -> None:
        """Remove a connection that has been closed."""
        self.limits.forget(connection)
        self.unsent.release(connection)
        self.memory.frame_ended(connection)
        if self._connections.pop(connection.number, None) is not None:
            self._count_bytes(connection)
            self.broker.controller.presence.closed(connection.number)
            self.broker.coordinators.on_connection_closed(connection.number)

    def _count_bytes(self, connection: Connection) -> None:
        """Add the bytes that a connection has transferred to the metrics."""
        self.metrics.transferred(*connection.take_counts())

    def count_bytes(self) -> None:
        """Update the byte counters."""
        for connection in self.connections():
            self._count_bytes(connection)

    def requests_by_api(self) -> list[tuple[str, int]]:
        """The number of requests by API."""
        return [(route.api.name, route.count) for route in self.dispatcher.routes.values()]

    def _sweep(self) -> None:
        """Shrink idle buffers, and close connections idle for connections.max.idle.ms, once a second."""
        self._look_at_all(self.connections(), self.now)

    def _look_at_all(self, connections: list[Connection], now: float) -> None:
        """Check the connections over several turns of the event loop, and then the limits on all connections."""
        for connection in connections[:LOOKED_AT_A_TURN]:
            self._count_bytes(connection)
            self.look_at(connection, now)
        rest = connections[LOOKED_AT_A_TURN:]
        if rest and not self._stopping:
            self._loop.call_soon(self._look_at_all, rest, now)
            return
        if self.memory.waiting:
            self._end_slow_frames()
        self.memory.ask_again()
        self.unsent.look()
        self.limits.look(now)
        self.refusals.look(now)
        if self.broker.metadata.standard_authorizer is not None:
            self.broker.metadata.standard_authorizer.look()
        if not self._stopping:
            self._sweeper = self._loop.call_later(SWEEP_EVERY_S, self._sweep)

    def look_at(self, connection: Connection, now: float) -> None:
        """Close a connection that was idle for connections.max.idle.ms, because the peer has neither sent requests nor
        read replies."""
        idle_ms = self.broker.config.connections_max_idle_ms
        activity = connection.look(now)
        reply = connection.last_reply
        waits = isinstance(reply, TaskReply) and reply.task is not None and reply.holds_frame
        if waits and has_hung_up(connection.transport):
            connection.abort()
            return
        if idle_ms < 0:
            return
        stuck_ms = (now - activity.stuck_since) * 1000
        if activity.unsent_bytes and stuck_ms > idle_ms:
            connection.drop(f"it has not read its replies for {stuck_ms / 1000:.0f} s")
        elif (now - activity.quiet_since) * 1000 > idle_ms and connection.is_quiet:
            connection.close()

    def _end_slow_frames(self) -> None:
        """Close connections with slow partial frames, beginning with the largest buffer, until there is enough memory
        for the waiting connections."""
        wanted_bytes = self.memory.wanted_bytes
        slow = [each for each in self.connections() if each.activity.is_slow and each.holds_memory]
        for connection in sorted(slow, key=lambda each: each.buffer_bytes, reverse=True):
            if wanted_bytes <= 0:
                return
            wanted_bytes -= connection.buffer_bytes
            connection.refuse_frame("a partial frame arrives too slowly while other connections wait for memory")
