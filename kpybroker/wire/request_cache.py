"""Caches the parsed requests of one connection: clients repeat their requests, with other records or another offset.

A frame with the same bytes as an earlier one, except for known fields, is not parsed again: the earlier request is
returned with these fields changed. This is safe because a request has been processed before the next one of the
connection is parsed, or its handler only reads fields that do not change. The records are taken out of a cached
request; otherwise they would keep its receive buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

from kpybroker.errors import MalformedFrame
from kpybroker.wire.codec.codec import build
from kpybroker.wire.codec.primitives import read_uvarint, write_uvarint
from kpybroker.wire.response_templates import MARK, MARK_BYTES, SHORT_MARK, SHORT_MARK_BYTES

LEARNT_BYTES = 512
"""The longest request that is cached; longer ones are parsed each time."""
KNOWN_LIMIT = 32
"""The most cached requests of a connection: a producer sends to this many partitions in turn."""
CHANCES = 16
"""How often a connection's Fetch is cached: if its form changes each time, caching is not worthwhile."""
_NO_TAGS = b"\0\0\0"
"""The bytes after the records: the empty tagged fields of the partition, the topic and the request."""


class RepeatingProduce:
    """Parses like the lowered parser. If the bytes before the length of the only records field are the same, and no
    tagged fields follow it, the fields are the same."""

    __slots__ = ("_known", "_parse", "_records_at")

    def __init__(self, parse: Callable[[Any, int], Any]) -> None:
        self._parse = parse
        self._records_at = 0
        """The position of the records' length in the last parsed request."""
        self._known: dict[bytes, tuple[Any, Any]] = {}
        """Requests and their partition data, by the bytes from the header to the records' length."""

    def __call__(self, frame: memoryview, at: int) -> Any:
        records_at = self._records_at
        known = self._known.get(frame[at:records_at].tobytes())
        if known is not None and frame[-3:] == _NO_TAGS:
            low, high = frame[records_at], frame[records_at + 1]  # the end is three bytes, so there are two
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
    """Parses like the lowered parser. In a Fetch of one partition, the session's epoch and the offset change; they are
    at fixed positions."""

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
        # not if a tagged field is unknown, bytes follow the message, or a mark occurs twice
        if frame[at:] == found and body.count(SHORT_MARK_BYTES) == 2:
            self._size, self._unpack, self._same = len(frame), layout.unpack_from, (before, between, after)
            self._request, self._partition = request, partition
