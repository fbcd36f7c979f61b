"""Detects early that a broker's process has ended: its connection was closed, and its listener refuses connections.

A broker's session expires only after several seconds. A closed connection is detected sooner, but if a running broker
is fenced by mistake, records that were acknowledged with acks=1 can be lost. So a broker is fenced early only if its
connection to this controller was closed and its registered listener refuses two connections in a row; a timeout proves
nothing. At most one broker is fenced early per second: if many seem to have ended at once, something else is wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from kpybroker.controller.commands import BrokerLost, Command
from kpybroker.metadata.brokers import BrokerEndpoint, BrokerImage
from kpybroker.world import Network

log = logging.getLogger(__name__)

BETWEEN_DIALS_MS = 20
DIALS_MAX = 5
BETWEEN_FENCINGS_MS = 1000
DIAL_TIMEOUT_MS = 1000
CHECKS_MAX = 1000
"""The most brokers that are checked at once. Any others are fenced when their sessions expire."""


class Incarnation(NamedTuple):
    """A broker from one registration to the next."""

    node_id: int
    epoch: int


class BrokerRegistry(Protocol):
    """The part of the controller that `Presence` uses."""

    @property
    def is_active(self) -> bool: ...

    @property
    def brokers(self) -> Mapping[int, BrokerImage]: ...

    def tell(self, command: Command) -> None: ...


class Presence:
    """Checks brokers after their connections were closed, while this node is the active controller."""

    def __init__(self, network: Network, controller: BrokerRegistry, node_id: int) -> None:
        self._network = network
        self._controller = controller
        self._node_id = node_id
        self._connections: dict[int, Incarnation] = {}
        """Connection number -> the broker that sends its heartbeats on it."""
        self._checks: dict[Incarnation, asyncio.Task[None]] = {}
        self._next_fencing = 0.0
        """The earliest time of the next early fencing, on the clock of the event loop."""

    def heard(self, connection: int, node_id: int, epoch: int) -> None:
        """Record that a broker has sent a heartbeat on a connection."""
        self._connections[connection] = Incarnation(node_id, epoch)

    def closed(self, connection: int) -> None:
        """Check the broker that sent heartbeats on this connection, which was closed."""
        who = self._connections.pop(connection, None)
        if who is None or not self._controller.is_active or who in self._connections.values():
            return
        self._controller.tell(BrokerLost(*who))
        self._look_for(who)

    def stop(self) -> None:
        """Cancel all checks."""
        for task in self._checks.values():
            task.cancel()

    def begin_term(self) -> None:
        """Check every live broker once: a new controller does not know which connections were closed before its
        term."""
        for node_id, broker in self._controller.brokers.items():
            if not broker.fenced and node_id != self._node_id:
                self._look_for(Incarnation(node_id, broker.epoch))

    def _look_for(self, who: Incarnation) -> None:
        if who not in self._checks and len(self._checks) < CHECKS_MAX:
            task = self._checks[who] = asyncio.get_running_loop().create_task(self._check(who))
            task.add_done_callback(lambda _: self._checks.pop(who, None))

    async def _check(self, who: Incarnation) -> None:
        loop = asyncio.get_running_loop()
        while (endpoint := self._registered(who)) is not None:
            if not await self._refused_twice(endpoint):
                return
            wait_s = self._next_fencing - loop.time()
            if wait_s <= 0:
                break
            await asyncio.sleep(wait_s)  # then check again, since the broker may have registered in the meantime
        if self._registered(who) is None:
            return
        self._next_fencing = loop.time() + BETWEEN_FENCINGS_MS / 1000
        log.warning(
            "broker %d has ended: its connection was closed, and its listener refuses connections; it is fenced",
            who.node_id,
        )
        self._controller.tell(BrokerLost(*who, dead=True))

    def _registered(self, who: Incarnation) -> BrokerEndpoint | None:
        """The registered listener of a broker that is still considered live; None if there is nothing to check."""
        if not self._controller.is_active:
            return None
        broker = self._controller.brokers.get(who.node_id)
        if broker is None or broker.epoch != who.epoch or broker.fenced or who in self._connections.values():
            return None
        return broker.endpoints[0] if broker.endpoints else None

    async def _refused_twice(self, endpoint: BrokerEndpoint) -> bool:
        """Whether two connections in a row are refused. There are several attempts, because a process that ends may
        close its listener after its connections."""
        refused_before = False
        for _ in range(DIALS_MAX):
            refused = await self._refused(endpoint)
            if refused and refused_before:
                return True
            refused_before = refused
            await asyncio.sleep(BETWEEN_DIALS_MS / 1000)
        return False

    async def _refused(self, endpoint: BrokerEndpoint) -> bool:
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_MS / 1000):
                transport, _ = await self._network.connect(asyncio.Protocol, endpoint.host, endpoint.port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        transport.close()
        return False
