"""Limits the total memory of receive buffers (queued.max.request.bytes).

Buffers take memory as bytes arrive. Parts of the memory are reserved for small frames and for other nodes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from mmap import mmap
from typing import Protocol

from kpybroker.world.buffers import mapped_memory

IDLE_BUFFER_BYTES = 4096
BUSY_BUFFER_BYTES = 128 * 1024
"""The largest buffer for many small frames. For a larger frame, the buffer grows as the frame arrives."""
FIRST_STEP_BYTES = 16 * 1024
GROWTH = 4
"""The buffer of a frame is at most this many times as large as its received part."""
LIMIT_BYTES = 512 * 1024 * 1024
"""The limit if queued.max.request.bytes is not set."""
SMALL_FRAME_BYTES = 2 * 1024 * 1024
"""The largest frame that counts as small, for example a Produce with a batch of `message.max.bytes`."""
LARGE, SMALL, NODES = range(3)
"""The kinds of frames: large frames of clients, small frames of clients, and frames of other nodes."""
EIGHTHS = (5, 7, 8)
"""Frames of each kind may take memory while at most this many eighths of the limit are in use. The rest is reserved for
the kinds after it."""
MAPPED_BYTES = 4 * 1024 * 1024
"""Buffers of this size or more are mapped, so that pages are zeroed as bytes arrive: zeroing 100 MB takes about 40
ms."""
ASKED_A_TURN = 50
"""How many connections that are waiting for memory are resumed in one turn of the event loop."""


def next_step(come_bytes: int, frame_bytes: int) -> int:
    """The size of a frame's buffer when `come_bytes` have been received."""
    return min(frame_bytes, max(come_bytes * GROWTH, FIRST_STEP_BYTES))


def receive_buffer(size_bytes: int) -> bytearray | mmap:
    """A buffer to receive into. Its memory is freed when no views of it are left."""
    if size_bytes < MAPPED_BYTES:
        return bytearray(size_bytes)
    return mapped_memory(size_bytes)


class Holder(Protocol):
    """The part of a connection that is used here."""

    def go_on(self) -> None:
        """Request memory again."""


class ReceiveMemory:
    """Counts the bytes of receive buffers. One frame of each kind may exceed the limit; otherwise partial frames would
    wait for one another forever."""

    def __init__(self, limit_bytes: int) -> None:
        limit = limit_bytes if limit_bytes > 0 else LIMIT_BYTES
        self._limits = [limit * eighths // 8 for eighths in EIGHTHS]
        self.queue_max_bytes = limit // 8
        """The limit on the bytes of complete small frames that wait until a long request may start."""
        self.used_bytes = 0
        """The bytes of all buffers, without the minimum that each connection has."""
        self.is_short = False
        """Whether a frame is waiting or exceeds the limit. Connections then return unneeded buffers at once."""
        self._waiting: OrderedDict[Holder, int] = OrderedDict()
        self._beyond: dict[int, Holder] = {}
        """The connection whose frame may exceed the limit, by kind of frame."""
        self._to_ask = 0
        """How many waiting connections have yet to be resumed in this round."""
        self._asks = False

    @property
    def waiting(self) -> int:
        """How many connections are waiting for memory."""
        return len(self._waiting)

    @property
    def wanted_bytes(self) -> int:
        """How many bytes the waiting connections have requested."""
        return sum(self._waiting.values())

    def take(self, holder: Holder, more_bytes: int, frame_bytes: int, *, of_a_node: bool) -> bool:
        """Take `more_bytes` for a frame of `frame_bytes`. Return False if they are not free; then `go_on` is called
        later."""
        kind = NODES if of_a_node else SMALL if frame_bytes <= SMALL_FRAME_BYTES else LARGE
        is_free = self.used_bytes + more_bytes <= self._limits[kind]
        if not is_free and self._beyond.setdefault(kind, holder) is not holder:
            self._waiting[holder] = more_bytes
            self.is_short = True
            return False
        self._waiting.pop(holder, None)
        self.used_bytes += more_bytes
        self.is_short = bool(self._waiting or self._beyond)
        return True

    def take_if_free(self, more_bytes: int) -> bool:
        """Take bytes if they are free, without waiting."""
        if self.is_short or self.used_bytes + more_bytes > self._limits[LARGE]:
            return False
        self.used_bytes += more_bytes
        return True

    def give(self, size_bytes: int) -> None:
        """Return the bytes by which a buffer has shrunk."""
        self.used_bytes -= size_bytes
        self.ask_again()

    def frame_ended(self, holder: Holder) -> None:
        """Stop waiting for memory, because the frame is complete or its connection is closed."""
        self._waiting.pop(holder, None)
        self.step_back(holder)
        self.ask_again()

    def step_back(self, holder: Holder) -> None:
        """Let another frame exceed the limit."""
        if self._beyond:
            for kind in [kind for kind, other in self._beyond.items() if other is holder]:
                del self._beyond[kind]
        self.is_short = bool(self._waiting or self._beyond)

    def ask_again(self) -> None:
        """Resume all waiting connections soon. This happens in steps, since every connection that closes calls this."""
        self._to_ask = len(self._waiting)
        if self._to_ask and not self._asks:
            self._asks = True
            asyncio.get_running_loop().call_soon(self._ask)

    def _ask(self) -> None:
        for _ in range(min(self._to_ask, len(self._waiting), ASKED_A_TURN)):
            self._to_ask -= 1
            self._waiting.popitem(last=False)[0].go_on()
        self._asks = bool(self._to_ask and self._waiting)
        self.is_short = bool(self._waiting or self._beyond)
        if self._asks:
            asyncio.get_running_loop().call_soon(self._ask)
