"""Limits the memory of all receive buffers together (queued.max.request.bytes): it is taken as bytes arrive, and parts
of it are reserved."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Protocol

IDLE_BUFFER_BYTES = 4096
BUSY_BUFFER_BYTES = 128 * 1024
"""The largest buffer for many small frames; for a larger frame, it grows as the frame arrives."""
FIRST_STEP_BYTES = 16 * 1024
GROWTH = 4
"""The buffer of a frame is at most this many times as large as its received part."""
LIMIT_BYTES = 512 * 1024 * 1024
"""The limit if queued.max.request.bytes sets none."""
SMALL_FRAME_BYTES = 2 * 1024 * 1024
"""The largest small frame: a Produce of `message.max.bytes` with its header is one."""
LARGE, SMALL, NODES = range(3)
"""Large frames of clients, small frames of clients, frames of other nodes."""
EIGHTHS = (5, 7, 8)
"""A frame of each kind may take more memory while at most this many eighths of the limit are in use; the rest is
reserved for the kinds after it."""
MAPPED_BYTES = 4 * 1024 * 1024
"""Buffers of this size or more get their pages as bytes arrive: zeroing 100 MB takes some 40 ms."""
ASKED_A_TURN = 50
"""How many of the connections that wait for memory are resumed in one turn of the loop."""


def next_step(come_bytes: int, frame_bytes: int) -> int:
    """The size of a frame's buffer for this many received bytes."""
    return min(frame_bytes, max(come_bytes * GROWTH, FIRST_STEP_BYTES))


def receive_buffer(size_bytes: int) -> bytearray | mmap:
    """Memory to receive into. It lives as long as there are views of it."""
    if size_bytes < MAPPED_BYTES:
        return bytearray(size_bytes)
    return mmap(-1, size_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)


class Holder(Protocol):
    """The part of a connection that is used here."""

    def go_on(self) -> None:
        """Ask for memory again."""


class ReceiveMemory:
    """Counts the bytes of receive buffers. At the limit, one frame of each kind may exceed it; otherwise partial frames
    would wait for one another for ever."""

    def __init__(self, limit_bytes: int) -> None:
        limit = limit_bytes if limit_bytes > 0 else LIMIT_BYTES
        self._limits = [limit * eighths // 8 for eighths in EIGHTHS]
        self.queue_max_bytes = limit // 8
        """The limit for complete small frames that wait for a place among the long requests."""
        self.used_bytes = 0
        """The bytes of all buffers above the minimum of each connection."""
        self.is_short = False
        """Whether a frame waits or exceeds the limit: unneeded buffers are then given back at once."""
        self._waiting: OrderedDict[Holder, int] = OrderedDict()
        self._beyond: dict[int, Holder] = {}
        """By kind, the connection whose frame may exceed the limit."""
        self._to_ask = 0
        """How many waiting connections are still to be resumed in this round."""
        self._asks = False

    @property
    def waiting(self) -> int:
        """How many connections wait for memory."""
        return len(self._waiting)

    @property
    def wanted_bytes(self) -> int:
        """How many bytes the waiting connections have asked for."""
        return sum(self._waiting.values())

    def take(self, holder: Holder, more_bytes: int, frame_bytes: int, *, of_a_node: bool) -> bool:
        """Take `more_bytes` for a frame of `frame_bytes`; False if they are not free: `go_on` is called later."""
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
        """A buffer has shrunk: return its bytes."""
        self.used_bytes -= size_bytes
        self.ask_again()

    def frame_ended(self, holder: Holder) -> None:
        """The frame is complete, or its connection is closed."""
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
        """Resume all waiting connections soon, and in steps, since every connection that closes calls this."""
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
