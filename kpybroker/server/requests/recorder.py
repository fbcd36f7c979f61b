"""Records the requests of clients and their responses, as frames, for tests.

The interceptor is added with the first tape, so a server that records nothing runs none of this. Requests of brokers,
requests to the controller's listener, logins, and requests of the test kit itself are never recorded.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from kpybroker.call import CONTROLLER, Reply
from kpybroker.errors import MalformedFrame
from kpybroker.security.principal import Principal
from kpybroker.server.connections.connection import Connection
from kpybroker.server.connections.port import Dispatch, Encode
from kpybroker.wire.api import PRODUCE
from kpybroker.wire.codec.codec import build, parser_at_once
from kpybroker.wire.codec.primitives import ManyElements
from kpybroker.wire.frame import parse_request_header
from kpybroker.wire.recording import CLOSED, KIT_CLIENT_ID, NOT_SENT
from kpybroker.wire.records.batch import HEADER_BYTES
from kpybroker.world.stopwatch import perf_counter

_KIT = len(KIT_CLIENT_ID).to_bytes(2, "big") + KIT_CLIENT_ID.encode()
_CLIENT_AT, _KIT_ENDS_AT = 8, 8 + len(_KIT)
TAPES_MAX = 16
OPEN_MAX = 10_000
"""When this many replies are awaited, those of closed connections are forgotten."""
ENTRY_BYTES = 300
"""The size of an entry without its frames, for the limits."""


class Limits(NamedTuple):
    """What a tape keeps."""

    requests: int
    size_bytes: int
    """The limit on all frames together."""
    frame_bytes: int
    """A larger frame is not kept; of a larger Produce request everything but the records is kept."""
    keeps_last: bool
    """At the limit, whether the oldest requests are dropped, rather than later requests not recorded."""


LAST = Limits(requests=1000, size_bytes=1_000_000, frame_bytes=16_384, keeps_last=True)
"""The last requests, which a broker of a test always keeps."""
RECORDING = Limits(requests=100_000, size_bytes=64_000_000, frame_bytes=64_000_000, keeps_last=False)


Sender = tuple[int, str, Principal]
"""The number of the connection, the client's address and the user."""


class Entry:
    """One recorded request."""

    __slots__ = (
        "address",
        "began",
        "connection",
        "ended",
        "how",
        "is_kept",
        "number",
        "principal",
        "request",
        "request_bytes",
        "response",
        "response_bytes",
    )

    def __init__(self, number: int, sender: Sender, began: float, request: bytes, request_bytes: int) -> None:
        self.number = number
        self.connection, self.address, self.principal = sender
        self.began = began
        """The time of `perf_counter`, in seconds."""
        self.request = request
        self.request_bytes = request_bytes
        self.ended: float | None = None
        self.response: bytes | None = None
        self.response_bytes = 0
        self.how: str | None = None
        """How the request ended if it has no response."""
        self.is_kept = True

    @property
    def size_bytes(self) -> int:
        """The bytes that count for the limits."""
        return ENTRY_BYTES + len(self.request) + len(self.response or b"")

    def end(self, now: float, how: str) -> None:
        """Store that there is no response."""
        self.ended, self.how = now, how

    def answer(self, now: float, response: bytes | None, response_bytes: int) -> None:
        """Store the response, or only its size."""
        self.ended, self.response, self.response_bytes = now, response, response_bytes

    def drop(self) -> None:
        """Store that no tape has this entry any more."""
        self.is_kept = False


class Tape:
    """Recorded requests within limits."""

    def __init__(self, limits: Limits) -> None:
        self._requests, self._size_bytes, self._frame_bytes, self._keeps_last = limits
        self.size_bytes = 0
        self.lost = 0
        """The number of requests that were not recorded because the tape was full."""
        self._entries: deque[Entry] = deque()

    @property
    def keeps_last(self) -> bool:
        """Whether the oldest requests are dropped when the tape is full."""
        return self._keeps_last

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self, number: int, sender: Sender, began: float, frame: memoryview) -> Entry | None:
        """Add a request. Returns None if the tape is full."""
        request_bytes = len(frame)
        request = bytes(frame) if request_bytes <= self._frame_bytes else _shortened(frame)
        entry = Entry(number, sender, began, request, request_bytes)
        return entry if self._add(entry, ENTRY_BYTES + len(request)) else None

    def _add(self, entry: Entry, size_bytes: int) -> bool:
        entries, size_bytes = self._entries, self.size_bytes + size_bytes
        is_full = len(entries) >= self._requests
        if not self._keeps_last:
            if is_full or size_bytes > self._size_bytes:
                self.lost += 1
                return False
        elif is_full:
            size_bytes -= self._drop_first()
        entries.append(entry)
        while size_bytes > self._size_bytes:
            size_bytes -= self._drop_first()
        self.size_bytes = size_bytes
        return True

    def _drop_first(self) -> int:
        """Drop the oldest entry. Returns its size in bytes."""
        entry = self._entries.popleft()
        entry.drop()
        return entry.size_bytes

    def answer(self, entry: Entry, now: float, buffers: Sequence[Any]) -> None:
        """Add the response to a request, given as the buffers that are sent; none if no response is sent."""
        if not entry.is_kept:
            return
        if not buffers:
            entry.end(now, NOT_SENT)
            return
        response = b"".join(buffers) if len(buffers) == 1 else None
        response_bytes = (sum(map(len, buffers)) if response is None else len(response)) - 4
        size_bytes = self.size_bytes + response_bytes
        if response_bytes > self._frame_bytes or (size_bytes > self._size_bytes and not self._keeps_last):
            entry.answer(now, None, response_bytes)
            return
        entry.answer(now, (response or b"".join(buffers))[4:], response_bytes)
        while size_bytes > self._size_bytes:
            size_bytes -= self._drop_first()
        self.size_bytes = size_bytes

    def forget(self, connection: int) -> None:
        """Remove the requests of a connection."""
        self.remove([entry for entry in self._entries if entry.connection == connection])

    def remove(self, entries: Sequence[Entry]) -> None:
        """Remove these entries."""
        gone = {entry.number for entry in entries}
        for entry in entries:
            entry.drop()
            self.size_bytes -= entry.size_bytes
        self._entries = deque(entry for entry in self._entries if entry.number not in gone)

    def copy_from(self, other: Tape) -> None:
        """Add the requests of another tape that are complete."""
        for entry in other:
            if entry.ended is not None:
                sender = entry.connection, entry.address, entry.principal
                copy = Entry(entry.number, sender, entry.began, entry.request, entry.request_bytes)
                if entry.how is None:
                    copy.answer(entry.ended, entry.response, entry.response_bytes)
                else:
                    copy.end(entry.ended, entry.how)
                self._add(copy, copy.size_bytes)


def _shortened(frame: memoryview) -> bytes:
    """A Produce request with only the headers of its first batches; nothing but the header of any other request."""
    header, body_at = parse_request_header(frame)
    if header.api_key != PRODUCE.key or not PRODUCE.min <= header.api_version <= PRODUCE.max:
        return bytes(frame[:body_at])
    try:
        request: Any = parser_at_once(PRODUCE.request, header.api_version)(frame, body_at)
    except (ManyElements, MalformedFrame):
        return bytes(frame[:body_at])
    for topic in request.topic_data:
        for row in topic.partition_data:
            row.records = None if row.records is None else row.records[:HEADER_BYTES]
    return bytes(frame[:body_at]) + build(request, header.api_version)


class Recorder:
    """The interceptor, with tapes by number. `on_change` is called when it becomes active or inactive."""

    def __init__(self, wall_ms: Callable[[], int], on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._epoch_s = wall_ms() / 1000 - perf_counter()
        self._numbers = itertools.count(1)
        self._tape_numbers = itertools.count(1)
        self._tapes: dict[int, Tape] = {}
        self._open: dict[Reply, tuple[Connection, list[tuple[Tape, Entry]]]] = {}
        self.last: Tape | None = None
        """The tape of the last requests; None before `remember`."""

    @property
    def is_active(self) -> bool:
        """Whether there is a tape."""
        return bool(self._tapes)

    def at_us(self, began: float) -> int:
        """Microseconds since the epoch of a time of `Entry`."""
        return int((self._epoch_s + began) * 1_000_000)

    def remember(self, limits: Limits = LAST) -> None:
        """Keep the last requests from now on."""
        self.last = self._tapes[0] = Tape(limits)
        self._on_change()

    def begin(self, *, with_last: bool = False, limits: Limits = RECORDING) -> int:
        """Begin a tape and return its number. `with_last`: it begins with the last requests. Raises ValueError if there
        are TAPES_MAX."""
        if len(self._tapes) - (self.last is not None) >= TAPES_MAX:
            raise ValueError(f"there are {TAPES_MAX} recordings already; end some")
        number = next(self._tape_numbers)
        tape = Tape(limits)
        if with_last and self.last is not None:
            tape.copy_from(self.last)
        self._tapes[number] = tape
        self._on_change()
        return number

    def tape(self, number: int) -> Tape:
        """A tape. Raises KeyError."""
        return self._tapes[number]

    def end(self, number: int) -> None:
        """Remove a tape. Raises KeyError."""
        del self._tapes[number]
        self._on_change()

    def around(self, dispatch: Dispatch, encode: Encode) -> tuple[Dispatch, Encode]:
        """Record each request and its response."""
        waiting = self._open

        def recorded(connection: Connection, frame: memoryview) -> None:
            if (
                connection.is_of_a_node
                or connection.listener.side == CONTROLLER
                or frame[_CLIENT_AT:_KIT_ENDS_AT] == _KIT
            ):
                dispatch(connection, frame)
            else:
                self._record(dispatch, connection, frame)

        def encoded(reply: Reply) -> Sequence[Any]:
            buffers = encode(reply)
            if waiting and (found := waiting.pop(reply, None)) is not None:
                now = perf_counter()
                for tape, entry in found[1]:
                    tape.answer(entry, now, buffers)
            return buffers

        return recorded, encoded

    def _record(self, dispatch: Dispatch, connection: Connection, frame: memoryview) -> None:
        number, began = next(self._numbers), perf_counter()
        sender = connection.number, connection.peer, connection.principal
        entries = []
        for tape in self._tapes.values():
            # before the request is handled, because the broker patches the records of a Produce request in place
            entry = tape.begin(number, sender, began, frame)
            if entry is not None:
                entries.append((tape, entry))
        before = connection.last_reply
        try:
            dispatch(connection, frame)
        except MalformedFrame as malformed:
            for _, entry in entries:
                entry.end(perf_counter(), f"refused: {malformed}")
            raise
        if connection.is_of_a_node:
            for tape in self._tapes.values():
                tape.forget(connection.number)
            return
        reply = connection.last_reply
        if reply is before:
            reply = None
        if isinstance(reply, Reply):
            if len(self._open) >= OPEN_MAX:
                self.settle()
            self._open[reply] = connection, entries
            return
        now = perf_counter()
        for tape, entry in entries:
            if reply is not None:
                tape.answer(entry, now, reply)
            elif connection.is_closing:
                entry.end(now, CLOSED)
            else:
                entry.end(now, NOT_SENT)

    def settle(self) -> None:
        """End the requests whose connections have been closed before the response."""
        now = perf_counter()
        for reply in [reply for reply, (connection, _) in self._open.items() if connection.is_closing]:
            for _, entry in self._open.pop(reply)[1]:
                entry.end(now, CLOSED)
