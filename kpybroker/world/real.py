"""The World of the operating system: asyncio sockets, files, the wall clock."""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from random import Random

from kpybroker.world import World
from kpybroker.world.expiry_clock import ExpiryClock
from kpybroker.world.handshakes import Handshakes
from kpybroker.world.secure import HANDSHAKE_S, TlsAcceptor, TlsContext
from kpybroker.world.sharing_ports import keep_for_one
from kpybroker.world.system_disk import SystemDisk
from kpybroker.world.tls_stream import TlsStream

if sys.platform == "win32":
    from kpybroker.world.windows_disk import WindowsDisk as RealDisk
else:
    from kpybroker.world.posix_disk import PosixDisk as RealDisk

__all__ = ["RealDisk", "RealListener", "RealNetwork", "RealWorld", "real_world"]

_BACKLOG = 1024
_ACCEPTED_A_TURN = 32
"""asyncio accepts as many connections at once as its backlog allows. With 1024, other work would have to wait."""


class RealListener:
    """A listening socket, or one for each address of its host, all on the same port."""

    def __init__(self, servers: Sequence[asyncio.Server], port: int, handshakes: Handshakes | None) -> None:
        self._servers = servers
        self._port = port
        self._handshakes = handshakes

    @property
    def port(self) -> int:
        return self._port

    def close(self) -> None:
        for server in self._servers:
            server.close()
        if self._handshakes is not None:
            self._handshakes.close()


def _bound_socket(family: int, address: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        keep_for_one(listening)
        if family == socket.AF_INET6:
            # otherwise, "::" would also bind the port of "0.0.0.0", which may be the next address of the same host
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(address)
    except OSError:
        listening.close()
        raise
    return listening


class RealNetwork:
    """TCP with the running event loop, which sets TCP_NODELAY on every stream."""

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: TlsAcceptor | None = None
    ) -> RealListener:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # IPv4 first, because with port 0 the port of the first address is used for all
        addresses = sorted({(family, address) for family, _, _, _, address in found})
        sockets: list[socket.socket] = []
        servers: list[asyncio.Server] = []
        handshakes = None if tls is None else Handshakes(tls)
        accepting = factory if handshakes is None else lambda: TlsStream(factory, handshakes)
        try:
            for family, address in addresses:
                sockets.append(_bound_socket(family, (address[0], port, *address[2:])))
                port = sockets[0].getsockname()[1]
            for listening in sockets:
                servers.append(await loop.create_server(accepting, sock=listening, backlog=_ACCEPTED_A_TURN))
                listening.listen(_BACKLOG)
        except OSError:
            for server in servers:
                server.close()
            for listening in sockets:
                listening.close()
            raise
        return RealListener(servers, port, handshakes)

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: TlsContext | None = None
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await asyncio.get_running_loop().create_connection(
            factory, host, port, ssl=tls, ssl_handshake_timeout=None if tls is None else HANDSHAKE_S
        )

    def host_name(self) -> str:
        """The name that the resolver has for the address of this machine; its own name if it has none."""
        name = socket.gethostname()
        try:
            return socket.gethostbyaddr(socket.gethostbyname(name))[0]
        except OSError:
            return name


class RealWorld:
    """The operating system's clock, random numbers, network and disk."""

    def __init__(self, seed: int | None = None, clock_ahead_ms: int = 0) -> None:
        self.expiry = ExpiryClock(self.steady_ms, clock_ahead_ms)
        self.random = Random(seed)
        self.network = RealNetwork()
        self.disk: SystemDisk = RealDisk()

    def secret_bytes(self, size: int) -> bytes:
        return secrets.token_bytes(size)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.expiry.ahead_ms

    def steady_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def close(self) -> None:
        self.disk.shutdown()


def real_world(clock_ahead_ms: int = 0) -> World:
    """A World of this machine. Its type lets mypy check it against the protocol.

    `clock_ahead_ms`: the time by which a test has advanced the clock of an earlier process of this node.
    """
    return RealWorld(clock_ahead_ms=clock_ahead_ms)
