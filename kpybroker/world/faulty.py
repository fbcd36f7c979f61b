"""The World of a test's broker: a real one, with faults of its disk and of its connections to other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from random import Random

from kpybroker.world import Listener, Network, World
from kpybroker.world.expiry_clock import ExpiryClock
from kpybroker.world.faulty_disk import FaultyDisk
from kpybroker.world.secure import TlsAcceptor, TlsContext


class FaultyNetwork:
    """A Network whose connections to some ports can be cut. All brokers of a test run on the same host."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._dialed: dict[int, list[asyncio.Transport]] = {}
        """The connections that this broker has opened, by port."""
        self._cut: frozenset[int] = frozenset()
        self._changed = asyncio.Event()
        self._is_down = False

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: TlsAcceptor | None = None
    ) -> Listener:
        return await self._network.listen(factory, host, port, tls)

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: TlsContext | None = None
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        while port in self._cut or self._is_down:
            await self._changed.wait()  # until the caller's timeout, because packets are lost
        transport, protocol = await self._network.connect(factory, host, port, tls)
        self._dialed[port] = [*(each for each in self._dialed.get(port, ()) if not each.is_closing()), transport]
        return transport, protocol

    def host_name(self) -> str:
        return self._network.host_name()

    def cut(self, ports: Collection[int]) -> None:
        """Close the connections to these ports, and let new ones wait. Replaces an earlier cut."""
        self._cut = frozenset(ports)
        self._changed.set()
        self._changed = asyncio.Event()
        for port in ports:
            for transport in self._dialed.pop(port, ()):
                transport.abort()

    def shut_down(self) -> None:
        """Close all connections that this broker has opened, and let it open no more."""
        self._is_down = True
        self.cut(list(self._dialed))


class FaultyWorld:
    """A World with a FaultyDisk and a FaultyNetwork; everything else is that of the other World."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.disk = FaultyDisk(world.disk)
        self.network = FaultyNetwork(world.network)

    @property
    def random(self) -> Random:
        return self._world.random

    @property
    def expiry(self) -> ExpiryClock:
        return self._world.expiry

    def secret_bytes(self, size: int) -> bytes:
        return self._world.secret_bytes(size)

    def wall_ms(self) -> int:
        return self._world.wall_ms()

    def steady_ms(self) -> int:
        return self._world.steady_ms()
