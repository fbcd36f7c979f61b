"""Implements TLS on one accepted connection, in steps of limited size.

asyncio's own TLS decrypts and encrypts everything at once, and reports only a part of its unsent bytes. Here, only a
few records are decrypted at a time, and a response is encrypted as the peer reads it. Work that takes longer than a
turn continues in the next turn, after other connections. Handshakes wait for their turn in `Handshakes`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol, cast

TURN_S = 0.005
"""The time for which one connection is served before other connections get their turn."""
CHUNK_BYTES = 64 * 1024
"""The most bytes that are encrypted in one call."""
TURN_BYTES = 512 * 1024
"""The most bytes that are encrypted in one turn."""
HIGH_BYTES, LOW_BYTES = 64 * 1024, 16 * 1024
"""Above HIGH_BYTES of unsent bytes, the protocol must stop writing; below LOW_BYTES, it may continue."""
HEADER_BYTES = 5
CONTENT_TYPES = range(20, 24)
MAJOR = 3
RECORD_BYTES_MAX = (1 << 14) + 2048
"""The largest record (RFC 5246, 6.2.3). Records of TLS 1.3 are smaller."""
HEAD_BYTES = 32 * 1024
"""The part of the scratch memory for the earlier bytes of an incomplete record."""
BARREN_MAX = 32
"""The most consecutive records without data. Each of them (KeyUpdate) may take as much time as many records with
data."""
HANDSHAKE_BUFFER_BYTES = 16 * 1024
"""The most bytes that are read before a handshake processes them."""
FED_AT_ONCE = 16
"""The number of records that are passed to OpenSSL at once, because it handles records without data in one call."""
NOTHING = memoryview(b"")
Piece = bytes | bytearray | memoryview


class Endless(ssl.SSLError):
    """The peer sends records without data."""


class Turns(Protocol):
    """The parts that the streams of a listener share."""

    scratch: memoryview
    """The memory into which bytes are received, after HEAD_BYTES. They are taken out at once."""

    def context(self) -> ssl.SSLContext:
        """The context for a new handshake."""

    def began(self, stream: TlsStream) -> None:
        """Called when a connection was accepted."""

    def ready(self, stream: TlsStream) -> None:
        """Called when a record of the stream's handshake has arrived. Must call `shake_hands` when it is the stream's
        turn."""

    def ended(self, stream: TlsStream, why: Exception | None) -> None:
        """Called when the handshake has ended. `why`: the reason if it failed, else None."""

    def broke(self, stream: TlsStream, error: ssl.SSLError) -> None:
        """Called when the bytes after the handshake are not TLS."""


class TlsStream(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of a transport without TLS, and the transport of the protocol that `factory` makes after the
    handshake."""

    def __init__(self, factory: Callable[[], asyncio.BaseProtocol], turns: Turns) -> None:
        super().__init__()
        self._factory = factory
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._raw: asyncio.Transport | None = None
        self._protocol: asyncio.BufferedProtocol | None = None
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._received = NOTHING
        """Records that are not decrypted yet. The next one begins at `_at`."""
        self._at = 0
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        self._barren = 0
        self._is_closing = self._is_processing = False
        self._goes_on = self._drains = False
        """Whether `_go_on` and `_drain` are scheduled for the next turn."""
        self._is_full = self._is_raw_full = False
        self._is_paused = self._is_raw_paused = False
        self.host = "?"

    # ---- the protocol of the transport without TLS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)  # uvloop's transport does not derive from it
        self.host = str((transport.get_extra_info("peername") or ("?",))[0])
        self._turns.began(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._turns.scratch[HEAD_BYTES:]

    def buffer_updated(self, nbytes: int) -> None:
        rest, scratch = self._received[self._at :], self._turns.scratch
        if len(rest) <= HEAD_BYTES:
            begin = HEAD_BYTES - len(rest)
            scratch[begin:HEAD_BYTES] = rest
            self._received, self._at = scratch[begin : HEAD_BYTES + nbytes], 0
        else:
            self._received, self._at = memoryview(b"".join((rest, scratch[HEAD_BYTES : HEAD_BYTES + nbytes]))), 0
        if self._protocol is not None:
            if not self._is_processing and not self._goes_on:
                self._process()
        elif not self._is_closing:
            if self._has_record():
                self._turns.ready(self)
            self._follow_reading()
        self._received, self._at = memoryview(bytes(self._received[self._at :])), 0  # copied out of the scratch memory

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_raw_full = True

    def resume_writing(self) -> None:
        self._is_raw_full = False
        self._drain()
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        protocol, self._protocol, self._raw = self._protocol, None, None
        self._forget()
        if protocol is not None:
            protocol.connection_lost(exc)
        else:
            self._turns.ended(self, exc or ConnectionResetError())

    # ---- the handshake

    def shake_hands(self) -> None:
        """Process one record of the handshake."""
        if self._is_closing or self._raw is None or not self._feed(1):
            return
        if self._tls is None:
            self._tls = self._turns.context().wrap_bio(self._incoming, self._outgoing, server_side=True)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            if self._has_record():
                self._turns.ready(self)
            self._follow_reading()
        except ssl.SSLError as error:
            self._give_up(error)
        else:
            self._flush()
            self._turns.ended(self, None)
            self._protocol = cast(asyncio.BufferedProtocol, self._factory())
            self._protocol.connection_made(self)
            self._go_on()

    def ignore(self) -> None:
        """Do not begin a handshake, and do not read."""
        self._is_closing = True
        self._follow_reading()

    def _give_up(self, why: ssl.SSLError) -> None:
        """End the handshake, and send the alert with the reason."""
        self._flush()
        self._is_closing = True
        self._turns.ended(self, why)
        if self._raw is not None:
            self._raw.close()

    # ---- from the peer

    def _has_record(self) -> bool:
        return self._ends_at(self._at) is not None

    def _ends_at(self, at: int) -> int | None:
        """The end of the record that begins at `at`; None if it is incomplete. Bytes that are not TLS count as one
        record."""
        received = self._received
        end = len(received)
        if end - at < HEADER_BYTES:
            is_other = at < end and (received[at] not in CONTENT_TYPES or (end - at > 1 and received[at + 1] != MAJOR))
            return end if is_other else None
        size = received[at + 3] << 8 | received[at + 4]
        if received[at] not in CONTENT_TYPES or received[at + 1] != MAJOR or size > RECORD_BYTES_MAX:
            return end
        after = at + HEADER_BYTES + size
        return after if after <= end else None

    def _feed(self, records: int) -> bool:
        """Pass at most `records` of the next records to OpenSSL. Returns False if none is complete. Raises Endless."""
        begin = end = self._at
        for _ in range(records):
            after = self._ends_at(end)
            if after is None or after == end:
                break
            end = after
            self._barren += 1
        if end == begin:
            return False
        if self._barren > BARREN_MAX and self._protocol is not None:
            raise Endless(f"{BARREN_MAX} records or more without data in a row")
        self._incoming.write(self._received[begin:end])
        self._at = end
        return True

    def _process(self) -> None:
        """Decrypt records for one turn."""
        if self._is_processing:
            return
        self._is_processing = True
        until = monotonic() + TURN_S  # uvloop's clock does not advance during a turn
        try:
            while self._may_read() and self._read(until):
                if monotonic() >= until:
                    self._go_on()
                    break
        except ssl.SSLError as error:
            self._break(error)
        finally:
            self._is_processing = False
        self._flush()
        self._follow_reading()

    def _may_read(self) -> bool:
        return not (self._is_closing or self._is_paused or self._is_raw_full or self._protocol is None)

    def _read(self, until: float) -> bool:
        """Fill the protocol's buffer once. Returns False if there is no more data. Raises ssl.SSLError."""
        assert self._protocol is not None
        assert self._tls is not None
        buffer = cast(memoryview, self._protocol.get_buffer(-1))
        room, filled, is_over = len(buffer), 0, False
        if not room:
            self._go_on()
            return False
        while filled < room:
            if not (self._incoming.pending or self._tls.pending()) and not self._feed_more(filled, until):
                break
            try:
                count = self._tls.read(room - filled, buffer[filled:] if filled else buffer)
            except ssl.SSLWantReadError:
                if not self._feed_more(filled, until):
                    break
                continue
            if not count:
                is_over = True
                break
            filled += int(count)
            self._barren = 0
        if filled:
            self._protocol.buffer_updated(filled)
        if is_over and not self._is_closing:
            self.close()
        return filled == room or self._has_record()

    def _feed_more(self, filled: int, until: float) -> bool:
        return (not filled or monotonic() < until) and self._feed(FED_AT_ONCE)

    def _go_on(self) -> None:
        """Continue to decrypt in the next turn."""
        if not self._goes_on:
            self._goes_on = True
            self._loop.call_soon(self._go_on_now)

    def _go_on_now(self) -> None:
        self._goes_on = False
        if self._protocol is not None:
            self._process()

    def _follow_reading(self) -> None:
        if self._raw is None or self._raw.is_closing():
            return
        is_ahead = self._protocol is None and len(self._received) - self._at >= HANDSHAKE_BUFFER_BYTES
        pause = self._is_closing or self._is_paused or self._is_raw_full or self._goes_on or is_ahead
        if pause != self._is_raw_paused:
            self._is_raw_paused = pause
            (self._raw.pause_reading if pause else self._raw.resume_reading)()

    def _break(self, error: ssl.SSLError) -> None:
        self._turns.broke(self, error)
        self._forget()
        self._flush()
        self._is_closing = True
        if self._raw is not None:
            self._raw.close()

    # ---- to the peer

    def _flush(self) -> None:
        if self._outgoing.pending and self._raw is not None:
            self._raw.write(self._outgoing.read())

    def _drain(self) -> None:
        """Encrypt as much as the transport accepts, for one turn."""
        if self._tls is None or self._raw is None:
            return
        done = 0
        while self._backlog and not self._is_raw_full:
            if done >= TURN_BYTES:
                self._drain_soon()
                break
            piece = self._backlog[0]
            try:
                count = self._tls.write(piece[:CHUNK_BYTES])
            except ssl.SSLError as error:
                self._break(error)
                return
            self._flush()
            done += count
            self._backlog_bytes -= count
            if count == len(piece):
                self._backlog.popleft()
            else:
                self._backlog[0] = piece[count:]
        if self._is_closing and not self._backlog:
            self._say_goodbye()
        self._follow_writing()

    def _drain_soon(self) -> None:
        if not self._drains:
            self._drains = True
            self._loop.call_soon(self._drain_now)

    def _drain_now(self) -> None:
        self._drains = False
        self._drain()

    def _follow_writing(self) -> None:
        if self._protocol is None:
            return
        unsent = self.get_write_buffer_size()
        if unsent > HIGH_BYTES and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()
        elif unsent <= LOW_BYTES and self._is_full:
            self._is_full = False
            self._protocol.resume_writing()

    def _say_goodbye(self) -> None:
        """Send close_notify, without waiting for the peer's."""
        if self._tls is not None:
            with suppress(ssl.SSLError):
                self._tls.unwrap()
        self._flush()
        if self._raw is not None:
            self._raw.close()

    def _forget(self) -> None:
        self._backlog.clear()
        self._backlog_bytes = 0
        self._received, self._at = NOTHING, 0

    # ---- the transport of the protocol

    def write(self, data: Piece) -> None:
        is_next = not (self._backlog or self._is_raw_full or self._is_closing or self._tls is None)
        if not is_next or not 0 < len(data) <= CHUNK_BYTES:
            self.writelines((data,))
            return
        try:
            cast(ssl.SSLObject, self._tls).write(data)
        except ssl.SSLError as error:
            self._break(error)
            return
        self._flush()
        if self._is_raw_full:
            self._follow_writing()

    def writelines(self, list_of_data: Iterable[Piece]) -> None:
        if self._is_closing:
            return
        for data in list_of_data:
            if data:
                piece = memoryview(data)
                self._backlog.append(piece)
                self._backlog_bytes += len(piece)
        if self._drains:
            self._follow_writing()
        else:
            self._drain()

    def get_write_buffer_size(self) -> int:
        raw = 0 if self._raw is None else self._raw.get_write_buffer_size()
        return self._backlog_bytes + self._outgoing.pending + raw

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Has no effect, because the limits are fixed."""

    def pause_reading(self) -> None:
        self._is_paused = True
        self._follow_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        self._go_on()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Send the written bytes and close_notify, and close without waiting for the peer's close_notify."""
        if self._is_closing:
            return
        self._is_closing = True
        if not self._backlog:
            self._say_goodbye()
        self._follow_reading()

    def abort(self) -> None:
        self._is_closing = True
        self._forget()
        if self._raw is not None:
            self._raw.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._tls
        return default if self._raw is None else self._raw.get_extra_info(name, default)
