"""Limits and schedules the handshakes of a listener with TLS.

A handshake takes about a millisecond, and a client can start one with a few hundred bytes. So all handshakes together
may use only a few milliseconds in each turn of the event loop, and client addresses take turns.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from time import monotonic

from kpybroker.world.secure import HANDSHAKE_S, TlsAcceptor, why_failed
from kpybroker.world.tls_stream import HEAD_BYTES, Endless, TlsStream

TURN_S = 0.004
"""The time for which handshakes may run before other work gets its turn."""
SCRATCH_BYTES = HEAD_BYTES + 256 * 1024


class Crowded(Exception):
    """Too many handshakes were in progress."""


class Handshakes:
    """The handshakes of one listening socket."""

    def __init__(self, acceptor: TlsAcceptor) -> None:
        self._acceptor = acceptor
        self._loop = asyncio.get_running_loop()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.under_way: dict[TlsStream, asyncio.TimerHandle] = {}
        self._by_host: dict[str, dict[TlsStream, None]] = {}
        """The same streams by address, the oldest of each address first."""
        self._waiting: dict[str, deque[TlsStream]] = {}
        """The streams whose next record has arrived, by address."""
        self._queued: set[TlsStream] = set()
        self._is_due = False
        self._is_closed = False

    def context(self) -> ssl.SSLContext:
        return self._acceptor.context()

    def began(self, stream: TlsStream) -> None:
        if self._is_closed:
            stream.abort()
            return
        closes_s = self._acceptor.admits(stream.host)
        if closes_s == 0:
            stream.abort()
            return
        if len(self.under_way) >= self._acceptor.handshakes_max:
            crowd = max(self._by_host.values(), key=len)
            self._end(next(iter(crowd)), Crowded())
        if closes_s is None:
            timer = self._loop.call_later(HANDSHAKE_S, self._end, stream, TimeoutError())
        else:
            stream.ignore()
            timer = self._loop.call_later(closes_s, self._end, stream, None)
        self.under_way[stream] = timer
        self._by_host.setdefault(stream.host, {})[stream] = None

    def ready(self, stream: TlsStream) -> None:
        if stream in self._queued or stream not in self.under_way:
            return
        self._queued.add(stream)
        self._waiting.setdefault(stream.host, deque()).append(stream)
        self._take_turns()

    def ended(self, stream: TlsStream, why: Exception | None) -> None:
        timer = self.under_way.pop(stream, None)
        if timer is None:
            return
        timer.cancel()
        of_host = self._by_host[stream.host]
        del of_host[stream]
        if not of_host:
            del self._by_host[stream.host]
        if why is not None and not self._is_closed:
            self._acceptor.refused(stream.host, self._reason(why))

    def broke(self, stream: TlsStream, error: ssl.SSLError) -> None:
        self._acceptor.broken(stream.host, error.args[0] if isinstance(error, Endless) else self._reason(error))

    def _end(self, stream: TlsStream, why: Exception | None) -> None:
        self.ended(stream, why)
        stream.abort()

    def close(self) -> None:
        """End the handshakes in progress."""
        self._is_closed = True
        for stream in list(self.under_way):
            stream.abort()

    def _take_turns(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due = False
        until = monotonic() + TURN_S  # uvloop's clock does not advance during a turn
        while self._waiting:
            host = next(iter(self._waiting))
            queue = self._waiting.pop(host)
            stream = queue.popleft()
            if queue:
                self._waiting[host] = queue  # so that it is last in the order
            self._queued.discard(stream)
            stream.shake_hands()
            if monotonic() >= until:
                break
        if self._waiting:
            self._take_turns()

    def _reason(self, why: Exception) -> str:
        if isinstance(why, Crowded):
            return f"{self._acceptor.handshakes_max} handshakes were in progress, and this address had the most of them"
        return why_failed(why if isinstance(why, OSError) else ConnectionResetError(), self._acceptor.if_plain)
