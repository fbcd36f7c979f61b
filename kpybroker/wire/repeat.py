"""Parsing Produce requests of one connection: clients repeat themselves, all but the records.

A frame that has the same bytes as an earlier one up to the length of its only records field, and no tagged fields
behind it, has the same fields. It is then not parsed again: the earlier request is handed out with the new records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kpybroker.errors import MalformedFrame
from kpybroker.wire.message import Buffer
from kpybroker.wire.primitives import read_uvarint, write_uvarint

FIRST_FLEXIBLE = 9
_NO_TAGS = b"\0\0\0"
"""Behind the records: the tagged fields of the partition, the topic and the request."""


class Repeating:
    """Does what the lowered parser does; the caller has done with a request before it asks for the next one.

    What remains valid of an earlier request are its fields other than the records.
    """

    __slots__ = ("_data", "_parse", "_prefix", "_records_at", "_request")

    def __init__(self, parse: Callable[[Any, int], Any]) -> None:
        self._parse = parse
        self._records_at = 0
        self._prefix = b""
        self._request: Any = None
        self._data: Any = None

    def __call__(self, frame: Buffer, at: int) -> Any:
        records_at = self._records_at
        if records_at and frame[at:records_at] == self._prefix and frame[-3:] == _NO_TAGS:
            try:
                length, records_at = read_uvarint(frame, records_at)
            except (IndexError, MalformedFrame):
                return self._parse(frame, at)
            if length and records_at + length + 2 == len(frame):
                self._data.records = frame[records_at:-3]
                return self._request
        request = self._parse(frame, at)
        self._learn(frame, at, request)
        return request

    def _learn(self, frame: Buffer, at: int, request: Any) -> None:
        self._records_at = 0
        if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
            return
        data = request.topic_data[0].partition_data[0]
        if data.records is None or frame[-3:] != _NO_TAGS:
            return
        length = write_uvarint(len(data.records) + 1)
        begin = len(frame) - 3 - len(data.records) - len(length)
        if frame[begin : begin + len(length)] != length:
            return
        self._records_at, self._prefix = begin, bytes(frame[at:begin])
        self._request, self._data = request, data
