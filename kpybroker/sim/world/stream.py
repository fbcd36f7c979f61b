"""One TCP stream of the simulated network: two transports, and a pipe for each direction."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

from kpybroker.sim.world.loop import Dead, Owner
from kpybroker.sim.world.wires import Wires
from kpybroker.world import Buffer

END: Final = b""
"""A FIN in a pipe."""
RESET: Final = None
"""An RST in a pipe."""
HIGH_WATER_BYTES = 64 * 1024


class Pipe:
    """One direction of a stream: the pieces in flight, in order. At most one window of bytes is in flight or unread."""

    __slots__ = ("_due", "_last_due", "_pieces", "_wires", "source", "target")

    def __init__(self, wires: Wires, source: SimTransport, target: SimTransport) -> None:
        self._wires = wires
        self.source = source
        self.target = target
        self._pieces: deque[bytes | None] = deque()
        self._due: deque[float] = deque()
        self._last_due = 0.0

    def send(self, piece: bytes | None) -> None:
        """Send a piece."""
        wires = self._wires
        link = wires.link(self.source.local[0], self.target.local[0])
        due = max(self._last_due, wires.loop.time() + wires.delay_s(link))
        self._last_due = due
        self._pieces.append(piece)
        self._due.append(due)
        wires.loop.at_for(wires.loop.simulation, due, self._arrive)

    def go_on(self) -> None:
        """Deliver the pieces that are due, after the link has been restored."""
        loop = self._wires.loop
        loop.at_for(loop.simulation, loop.time() + 0.001, self._arrive)

    def _arrive(self) -> None:
        wires, pieces = self._wires, self._pieces
        now = wires.loop.time()
        source, target = self.source.local[0], self.target.local[0]
        while pieces and self._due[0] <= now:
            if not wires.passes(source, target):
                wires.link(source, target).held[self.go_on] = None
                return
            piece = pieces.popleft()
            self._due.popleft()
            if piece:
                wires.history.note("net", "", (source, target, len(piece), crc32(piece)))
            self.target.arrived(piece)


class SimTransport(asyncio.Transport):
    """One end of a stream. Its callbacks belong to `owner`. The kernel's part of it continues while the owner is
    halted."""

    def __init__(
        self,
        wires: Wires,
        owner: Owner,
        local: tuple[str, int],
        remote: tuple[str, int],
        host: dict[SimTransport, None],
    ) -> None:
        """`host` has the open ends on the machine at `local`. The transport adds itself to them, and removes itself
        when it closes."""
        super().__init__({"peername": remote, "sockname": local})
        self._wires = wires
        self._loop = wires.loop
        self.owner = owner
        self.local = local
        self.remote = remote
        self.peer: SimTransport
        self._pipe: Pipe
        self._protocol: asyncio.BaseProtocol | None = None
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._on_way_bytes = 0
        self._inbox: deque[bytes | None] = deque()
        self._reads_soon = False
        self._reading = True
        self._closing = False
        self.is_gone = False
        self._writing_paused = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._host = host
        host[self] = None

    def join(self, other: SimTransport) -> None:
        self.peer, other.peer = other, self
        self._pipe, other._pipe = Pipe(self._wires, self, other), Pipe(self._wires, other, self)

    def begin(self, factory: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """Create the protocol and connect it."""
        protocol = self._protocol = factory()
        protocol.connection_made(self)
        self._read_soon()
        return protocol

    # ---- reading

    def arrived(self, piece: bytes | None) -> None:
        """Receive a piece, as the kernel does."""
        if self.is_gone:
            if piece and not self.peer.is_gone:
                self._pipe.send(RESET)
            return
        if piece is RESET:
            self._inbox.clear()
        self._inbox.append(piece)
        self._read_soon()

    def _read_soon(self) -> None:
        if not self._reads_soon and self._inbox and self._protocol is not None:
            self._reads_soon = True
            self._loop.soon_for(self.owner, self._read)

    def _read(self) -> None:
        self._reads_soon = False
        if self.is_gone or not self._inbox:
            return
        piece = self._inbox[0]
        if piece is RESET:
            self._lose(ConnectionResetError(errno.ECONNRESET, "reset by peer"))
            return
        if not self._reading or self._closing:
            return
        protocol = self._protocol
        if piece == END:
            self._inbox.popleft()
            assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            if not protocol.eof_received():
                self.close()
            return
        assert piece is not None
        taken = self._hand_over(protocol, piece)
        self.peer.consumed(taken)
        self._read_soon()

    def _hand_over(self, protocol: Any, piece: bytes) -> int:
        """Pass the protocol as much of a piece as it has room for. Returns the number of bytes."""
        if not isinstance(protocol, asyncio.BufferedProtocol):
            self._inbox.popleft()
            protocol.data_received(piece)
            return len(piece)
        room = memoryview(protocol.get_buffer(-1))
        assert len(room), "a buffered protocol has no room, but has not paused"
        taken = min(len(room), len(piece))
        room[:taken] = piece[:taken]
        if taken == len(piece):
            self._inbox.popleft()
        else:
            self._inbox[0] = piece[taken:]
        protocol.buffer_updated(taken)
        return taken

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._read_soon()

    # ---- writing

    def write(self, data: Buffer) -> None:
        if not self.owner.alive:
            raise Dead
        if self._closing or self.is_gone or not data:
            return
        self._out.append(bytes(data))
        self._out_bytes += len(data)
        self._push()
        if self._out_bytes > self._high and not self._writing_paused:
            self._writing_paused = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    def _push(self) -> None:
        """Send as many bytes as the window allows, as the kernel does."""
        wires = self._wires
        while self._out and self._on_way_bytes <= wires.window_bytes // 2:  # avoids the silly window syndrome
            piece = self._out.popleft()
            size = min(len(piece), wires.window_bytes - self._on_way_bytes)
            if size > 1 and wires.random.random() < wires.weather.split_odds:
                size = wires.random.randrange(1, size)
            if size < len(piece):
                self._out.appendleft(piece[size:])
                piece = piece[:size]
            self._out_bytes -= size
            self._on_way_bytes += size
            self._pipe.send(piece)
        if self._closing and not self._out and not self.is_gone:
            self._pipe.send(END)
            self._lose(None)

    def consumed(self, count: int) -> None:
        self._on_way_bytes -= count
        if self.is_gone:
            return
        if self._out:
            self._push()
        if self._writing_paused and self._out_bytes <= self._low:
            self._writing_paused = False
            self._loop.soon_for(self.owner, self._resume_writing)

    def _resume_writing(self) -> None:
        if self._protocol is not None and not self.is_gone:
            self._protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._out_bytes

    def can_write_eof(self) -> bool:
        return False

    # ---- ending

    def is_closing(self) -> bool:
        return self._closing or self.is_gone

    def close(self) -> None:
        if not self._closing and not self.is_gone:
            self._closing = True
            self._push()

    def abort(self) -> None:
        if not self.is_gone:
            self._pipe.send(RESET)
            self._lose(None)

    def reset(self) -> None:
        """Reset the connection as if an RST had arrived that the peer did not send."""
        if not self.is_gone:
            self._inbox.clear()
            self._inbox.append(RESET)
            self._read_soon()

    def die(self, *, silently: bool) -> None:
        """Close this end as the kernel does when the owner is dead, with an RST if any bytes are unread or unsent."""
        if not self.is_gone:
            if not silently:
                self._pipe.send(RESET if self._inbox or self._out else END)
            self._forget()

    def _lose(self, why: Exception | None) -> None:
        self._forget()
        if self._protocol is not None:
            self._loop.soon_for(self.owner, self._protocol.connection_lost, why)

    def _forget(self) -> None:
        self.is_gone = self._closing = True
        self._out.clear()
        self._inbox.clear()
        self._host.pop(self, None)
