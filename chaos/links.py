"""A TCP proxy in front of every listener, with which every link can be cut, hung, slowed or reset.

A listener advertises one address, so it has one proxy. The proxy finds out from the kernel which process connected
(`chaos/connection_owner.py`), so there is a separate link for every ordered pair of nodes, and for the clients of each
node, also on controller listeners. The proxy cannot lose a SYN: a connection over a hung link is established, but then
receives nothing.

While a node is down its proxies refuse connections, as the node itself would.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, NamedTuple

from chaos.connection_owner import dialler
from oracle.cluster import Listening
from oracle.target import steady_port

CHUNK_BYTES = 65536
LOOK_AGAIN_S = 0.02
CALL_TIMEOUT_S = 10.0
RESET = struct.pack("ii", 1, 0)


class Flow(NamedTuple):
    """Bytes from a node (or CLIENTS) to another, on connections to a listener of this name."""

    source: int
    destination: int
    name: str


class Connection:
    """One proxied connection: its two ends, and the two sockets."""

    def __init__(self, dialled_by: int, to: Listening) -> None:
        self.forth = Flow(dialled_by, to.node_id, to.name)
        self.back = Flow(to.node_id, dialled_by, to.name)
        self.writers: list[asyncio.StreamWriter] = []

    def reset(self) -> None:
        """Send an RST to both ends."""
        for writer in self.writers:
            found = writer.get_extra_info("socket")
            if found is not None:
                with contextlib.suppress(OSError):
                    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()


class Links:
    """All proxies, on a separate thread. All public methods are thread-safe."""

    def __init__(self) -> None:
        self._listening: dict[int, Listening] = {}
        """Port of a proxy -> the listener behind it."""
        self._servers: dict[int, asyncio.Server] = {}
        self._openings: dict[int, asyncio.Task[None]] = {}
        self._pids: dict[int, int] = {}
        self._connections: set[Connection] = set()
        self._cut: dict[Flow, int] = {}
        self._hung: dict[Flow, int] = {}
        self._delays_s: dict[Flow, float] = {}
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self.forwarded: dict[Flow, int] = {}
        """Bytes forwarded so far, by flow."""
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def told(self, listening: Listening) -> int:
        """Create a proxy in front of this listener, and return its port. It accepts connections once `up` is called."""
        port = steady_port()
        self._listening[port] = listening
        return port

    def close(self) -> None:
        """Close all proxies and stop the thread."""
        for node_id in sorted({listening.node_id for listening in self._listening.values()}):
            self.down(node_id)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)

    # ---- nodes

    def up(self, node_id: int, pid: int) -> None:
        """The node's process has started: its proxies open when it listens."""
        self._call(self._up(node_id, pid))

    def down(self, node_id: int) -> None:
        """The node's process has ended: its proxies refuse connections, and close the open ones."""
        self._call(self._down(node_id))

    async def _up(self, node_id: int, pid: int) -> None:
        self._pids[node_id] = pid
        for port, listening in self._listening.items():
            if listening.node_id == node_id and port not in self._openings and port not in self._servers:
                self._openings[port] = self._loop.create_task(self._open(port, listening))

    async def _open(self, port: int, listening: Listening) -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", listening.port)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(LOOK_AGAIN_S)
        self._servers[port] = await asyncio.start_server(
            lambda reader, writer: self._accepted(reader, writer, port, listening), "127.0.0.1", port
        )
        del self._openings[port]

    async def _down(self, node_id: int) -> None:
        self._pids.pop(node_id, None)
        for port, listening in self._listening.items():
            if listening.node_id == node_id:
                opening, server = self._openings.pop(port, None), self._servers.pop(port, None)
                if opening is not None:
                    opening.cancel()
                if server is not None:
                    server.close()
        for connection in [one for one in self._connections if node_id in one.forth[:2]]:
            for writer in connection.writers:
                writer.close()

    # ---- faults

    def cut(self, flows: Iterable[Flow]) -> None:
        """Reset connections over these flows, and all new ones."""
        self._call(self._set(self._cut, list(flows)))

    def hang(self, flows: Iterable[Flow]) -> None:
        """Hold back all bytes on these flows until they heal."""
        self._call(self._set(self._hung, list(flows)))

    def delay(self, flows: Iterable[Flow], delay_s: float) -> None:
        """Delay all bytes on these flows."""
        self._call(self._delay(list(flows), delay_s))

    def heal(self, flows: Iterable[Flow]) -> None:
        """Remove one fault from each of these flows, and release the bytes that were held back."""
        self._call(self._heal(list(flows)))

    def heal_all(self) -> None:
        """Remove all faults."""
        self._call(self._heal_all())

    def reset(self, flows: Iterable[Flow]) -> int:
        """Reset the connections over these flows. Returns their number."""
        return int(self._call(self._reset(set(flows))))

    async def _set(self, faults: dict[Flow, int], flows: list[Flow]) -> None:
        for flow in flows:
            faults[flow] = faults.get(flow, 0) + 1
        if faults is self._cut:
            await self._reset(set(flows))

    async def _delay(self, flows: list[Flow], delay_s: float) -> None:
        for flow in flows:
            self._delays_s[flow] = delay_s

    async def _heal(self, flows: list[Flow]) -> None:
        for flow in flows:
            self._delays_s.pop(flow, None)
            for faults in (self._cut, self._hung):
                left = faults.pop(flow, 0) - 1
                if left > 0:
                    faults[flow] = left
        self._release()

    async def _heal_all(self) -> None:
        self._cut.clear()
        self._hung.clear()
        self._delays_s.clear()
        self._release()

    def _release(self) -> None:
        self._released.set()
        self._released = asyncio.Event()

    async def _reset(self, flows: set[Flow]) -> int:
        met = [one for one in self._connections if one.forth in flows or one.back in flows]
        for connection in met:
            connection.reset()
        return len(met)

    # ---- connections

    async def _accepted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, to: Listening
    ) -> None:
        source = dialler(writer.get_extra_info("peername")[1], port, self._pids)
        connection = Connection(source, to)
        connection.writers.append(writer)
        if connection.forth in self._cut or connection.back in self._cut:
            connection.reset()
            return
        self._connections.add(connection)
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", to.port)
            connection.writers.append(there_writer)
            pumps = [
                self._loop.create_task(self._pump(reader, there_writer, connection.forth)),
                self._loop.create_task(self._pump(there_reader, writer, connection.back)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            connection.reset()
        finally:
            self._connections.discard(connection)
            for one in connection.writers:
                one.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: Flow) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                while flow in self._hung:
                    await self._released.wait()
                if flow in self._delays_s:
                    await asyncio.sleep(self._delays_s[flow])
                self.forwarded[flow] = self.forwarded.get(flow, 0) + len(data)
                writer.write(data)
                await writer.drain()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)
