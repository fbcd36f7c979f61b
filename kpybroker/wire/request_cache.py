"""Caches the parsed requests of one connection, because clients repeat requests with other records or another offset.

If a frame has the same bytes as an earlier one, except for certain fields, it is not parsed again: the earlier request
is returned with new values for these fields. This is safe for two reasons: a request has been processed before the next
request of the connection is parsed, or its handler reads only fields that do not change. The records are removed from a
cached request, because they would keep its receive buffer in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from kpybroker.errors import MalformedFrame
from kpybroker.wire.codec.codec import build
from kpybroker.wire.codec.primitives import read_uvarint, write_uvarint
from kpybroker.wire.response_templates import MARK, MARK_BYTES, SHORT_MARK, SHORT_MARK_BYTES

LEARNT_BYTES: Final = 512
"""The longest request that is cached. Longer requests are parsed each time."""
KNOWN_LIMIT: Final = 32
"""The most cached requests of a connection, for a producer that sends to this many partitions in turn."""
CHANCES: Final = 16
"""The number of times that a connection's Fetch is cached. If its form changes each time, the cache does not help."""
_NO_TAGS: Final[bytes] = b"\0\0\0"
"""The bytes after the records: the empty tagged fields of the partition, the topic and the request."""


class RepeatingProduce:
    """Parses Produce requests as the generated parser does. The fields are the same as before if the bytes before the
    length of the only records field are the same and no tagged fields follow it."""

    __slots__ = ("_known", "_parse", "_records_at")

    def __init__(self, parse: Callable[[Any, int], Any]) -> None:
        self._parse = parse
        self._records_at = 0
        """The position of the records' length in the last parsed request."""
        self._known: dict[bytes, tuple[Any, Any]] = {}
        """The requests and their partition data, by the bytes from the header to the records' length."""

    def __call__(self, frame: memoryview, at: int) -> Any:
        records_at = self._records_at
        known = self._known.get(frame[at:records_at].tobytes())
        if known is not None and frame[-3:] == _NO_TAGS:
            low, high = frame[records_at], frame[records_at + 1]  # END has three bytes, so there are at least two
            if low > 127 >= high:
                length, records_at = low & 127 | high << 7, records_at + 2
            else:
                try:
                    length, records_at = read_uvarint(frame, records_at)
                except (IndexError, MalformedFrame):
                    return self._parse(frame, at)
            if length and records_at + length + 2 == len(frame):
                known[1].records = frame[records_at:-3]
                return known[0]
        request = self._parse(frame, at)
        self._learn(frame, at, request)
        return request

    def _learn(self, frame: memoryview, at: int, request: Any) -> None:
        if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
            return
        data = request.topic_data[0].partition_data[0]
        if data.records is None or frame[-3:] != _NO_TAGS:
            return
        length = write_uvarint(len(data.records) + 1)
        begin = len(frame) - 3 - len(data.records) - len(length)
        if begin - at > LEARNT_BYTES:
            return
        if frame[begin : begin + len(length)] != length:
            return
        if len(self._known) >= KNOWN_LIMIT:
            self._known.clear()
        self._records_at = begin
        self._known[frame[at:begin].tobytes()] = request, data


class RepeatingFetch:
    """Parses Fetch requests as the generated parser does. In a Fetch of one partition, only the session epoch and the
    offset change, and both are at fixed positions."""

    __slots__ = ("_chances", "_parse", "_partition", "_request", "_same", "_size", "_unpack", "_version")

    def __init__(self, parse: Callable[[Any, int], Any], version: int) -> None:
        self._parse = parse
        self._version = version
        self._chances = CHANCES
        self._size = -1
        self._unpack: Callable[[Any, int], tuple[Any, ...]]
        self._same: tuple[bytes, bytes, bytes]
        self._request: Any = None
        self._partition: Any = None

    def __call__(self, frame: memoryview, at: int) -> Any:
        if len(frame) == self._size:
            before, session_epoch, between, fetch_offset, after = self._unpack(frame, at)
            if (before, between, after) == self._same:
                self._request.session_epoch = session_epoch
                self._partition.fetch_offset = fetch_offset
                return self._request
        request = self._parse(frame, at)
        if (
            self._chances
            and len(frame) - at <= LEARNT_BYTES
            and len(request.topics) == 1
            and len(request.topics[0].partitions) == 1
        ):
            self._chances -= 1
            self._learn(frame, at, request, request.topics[0].partitions[0])
        return request

    def _learn(self, frame: memoryview, at: int, request: Any, partition: Any) -> None:
        session_epoch, fetch_offset = request.session_epoch, partition.fetch_offset
        request.session_epoch, partition.fetch_offset = SHORT_MARK, MARK
        body = build(request, self._version)
        request.session_epoch, partition.fetch_offset = session_epoch, fetch_offset
        before, _, rest = body.partition(SHORT_MARK_BYTES)
        between, _, after = rest.partition(MARK_BYTES)
        layout = Struct(f">{len(before)}si{len(between)}sq{len(after)}s")
        found = layout.pack(before, session_epoch, between, fetch_offset, after)
        # not cached if a tagged field is unknown, bytes follow the message, or a mark occurs twice
        if frame[at:] == found and body.count(SHORT_MARK_BYTES) == 2:
            self._size, self._unpack, self._same = len(frame), layout.unpack_from, (before, between, after)
            self._request, self._partition = request, partition
