"""Parsing Produce requests of one connection: clients repeat themselves, all but the records.

A frame that has the same bytes as an earlier one up to the length of its only records field, and no tagged fields
behind it, has the same fields. It is then not parsed again: the earlier request is handed out with the new records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kpybroker.errors import MalformedFrame
from kpybroker.wire.primitives import read_uvarint, write_uvarint

FIRST_FLEXIBLE = 9
KNOWN_LIMIT = 64
"""Requests kept per connection: a producer sends to so many partitions in turn, of topics with names of one length."""
_NO_TAGS = b"\0\0\0"
"""Behind the records: the tagged fields of the partition, the topic and the request."""


class Repeating:
    """Does what the lowered parser does; the caller has done with a request before it asks for the next one.

    What remains valid of an earlier request are its fields other than the records.
    """

    __slots__ = ("_known", "_parse", "_records_at")

    def __init__(self, parse: Callable[[Any, int], Any]) -> None:
        self._parse = parse
        self._records_at = 0
        """Where the records' length stood in the request that was parsed last."""
        self._known: dict[bytes, tuple[Any, Any]] = {}
        """Requests, and the partition's data in them, by the bytes from the header to the records' length."""

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
        if frame[begin : begin + len(length)] != length:
            return
        if len(self._known) >= KNOWN_LIMIT:
            self._known.clear()
        self._records_at = begin
        self._known[frame[at:begin].tobytes()] = request, data
