"""The simulated network: hosts, listeners, connections, and links that delay, stall and break.

Streams behave like TCP streams: bytes arrive late, in pieces, or not at all, but never out of order. Bytes that a
broken link holds back are delivered when the link is restored, as if TCP had retransmitted them.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from random import Random

from kpybroker.sim.world.history import History
from kpybroker.sim.world.loop import Dead, Owner, VirtualLoop
from kpybroker.sim.world.stream import SimTransport
from kpybroker.sim.world.wires import Weather, Wires
from kpybroker.world.secure import TlsAcceptor, TlsContext

CONNECT_LIMIT_S = 60.0
EPHEMERAL_PORTS = 32768
ANY_HOST = ("", "0.0.0.0", "::")


class Host:
    """A machine on the network, with its listeners and the ends of its connections."""

    __slots__ = ("address", "listeners", "next_port", "transports")

    def __init__(self, address: str) -> None:
        self.address = address
        self.listeners: dict[int, SimListener] = {}
        self.transports: dict[SimTransport, None] = {}
        self.next_port = EPHEMERAL_PORTS


class Fabric(Wires):
    """All links and the hosts at their ends."""

    def __init__(self, loop: VirtualLoop, random: Random, history: History, weather: Weather) -> None:
        super().__init__(loop, random, history, weather)
        self.hosts: dict[str, Host] = {}

    def host(self, address: str) -> Host:
        found = self.hosts.get(address)
        if found is None:
            found = self.hosts[address] = Host(address)
        return found

    def reset_between(self, one: str, other: str) -> None:
        """Reset all connections between two hosts at both ends, as if a middlebox had lost its state."""
        for transport in list(self.host(one).transports):
            if transport.remote[0] == other:
                transport.reset()
                transport.peer.reset()

    def kill(self, owner: Owner, address: str) -> None:
        """Close the sockets of a dead process. If its host has no power, it sends nothing."""
        host = self.host(address)
        for port, listener in list(host.listeners.items()):
            if listener.owner is owner:
                del host.listeners[port]
        for transport in list(host.transports):
            if transport.owner is owner:
                transport.die(silently=not self.has_power(address))


class SimListener:
    """A listening socket of one process."""

    def __init__(self, host: Host, port: int, owner: Owner, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._host = host
        self._port = port
        self.owner = owner
        self.factory = factory

    @property
    def port(self) -> int:
        return self._port

    def close(self) -> None:
        if self._host.listeners.get(self._port) is self:
            del self._host.listeners[self._port]


class SimNetwork:
    """The network of one process, for its World."""

    def __init__(self, fabric: Fabric, address: str, owner: Owner) -> None:
        self._fabric = fabric
        self.address = address
        self._owner = owner

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: TlsAcceptor | None = None
    ) -> SimListener:
        if tls is not None:
            raise OSError(errno.EPROTONOSUPPORT, "no TLS on the simulated network")
        if not self._owner.alive:
            raise Dead
        here = self._fabric.host(self.address)
        if host not in (*ANY_HOST, self.address, "127.0.0.1", "localhost"):
            raise OSError(errno.EADDRNOTAVAIL, f"cannot assign {host}")
        if port == 0:
            port = self._take_port(here)
        if port in here.listeners:
            raise OSError(errno.EADDRINUSE, f"{self.address}:{port} is in use")
        listener = here.listeners[port] = SimListener(here, port, self._owner, factory)
        return listener

    def host_name(self) -> str:
        return self.address

    def _take_port(self, here: Host) -> int:
        here.next_port += 1
        return here.next_port

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: TlsContext | None = None
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect as Linux does: SYNs are repeated after 1, 2, 4 ... seconds, and a port without a listener refuses at
        once."""
        if tls is not None:
            raise OSError(errno.EPROTONOSUPPORT, "no TLS on the simulated network")
        if not self._owner.alive:
            raise Dead
        fabric, here = self._fabric, self.address
        target = here if host in ("127.0.0.1", "localhost") else host
        began, patience = fabric.loop.time(), 1.0
        while True:
            await asyncio.sleep(fabric.delay_s(fabric.link(here, target)) + fabric.delay_s(fabric.link(target, here)))
            if fabric.passes(here, target) and fabric.passes(target, here):
                break
            if fabric.loop.time() - began > CONNECT_LIMIT_S:
                raise OSError(errno.ETIMEDOUT, f"{target}:{port} does not respond")
            await asyncio.sleep(patience)
            patience *= 2
        listener = fabric.host(target).listeners.get(port)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{target}:{port} refuses")
        return self._join(factory, listener, (here, self._take_port(fabric.host(here))), (target, port))

    def _join(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        listener: SimListener,
        near: tuple[str, int],
        far: tuple[str, int],
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        fabric = self._fabric
        one = SimTransport(fabric, self._owner, near, far, fabric.host(near[0]).transports)
        other = SimTransport(fabric, listener.owner, far, near, fabric.host(far[0]).transports)
        one.join(other)
        fabric.history.note("net", f"{near[0]}:{near[1]} connects to {far[0]}:{far[1]}")
        fabric.loop.soon_for(listener.owner, other.begin, listener.factory)
        return one, one.begin(factory)
