"""Templates for responses that differ only in a few numbers. A template is built once, and then the numbers are filled
in.

A template is the output of the builder for a response with marks in place of these numbers. So the result is always the
same as the output of the builder.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from kpybroker.wire.api import FETCH, PRODUCE
from kpybroker.wire.codec.building import LARGE_BYTES
from kpybroker.wire.codec.codec import build
from kpybroker.wire.codec.message import Buffer
from kpybroker.wire.codec.primitives import write_uvarint
from kpybroker.wire.rpc import fetch, produce

MARK: Final = 0xF7A5_C3E1_9B8D_F6D4 - (1 << 64)
"""The mark is not valid UTF-8, so no name contains it. `fetch_form` checks whether a topic id contains it."""
SHORT_MARK: Final = MARK >> 32
MARK_BYTES: Final = Struct(">q").pack(MARK)
SHORT_MARK_BYTES: Final = Struct(">i").pack(SHORT_MARK)
_SIZE_AND_ID: Final = Struct(">ii")
_NO_RECORDS: Final = b"\1\0\0\0"
"""The end of a Fetch response of one partition without records: their length, and three empty sets of tagged fields."""


class Filled:
    """A response that was built from a template, or that is already encoded except for the correlation id."""

    __slots__ = ()

    def buffers(self, correlation_id: int) -> tuple[Buffer, ...]:
        """The whole frame."""
        raise NotImplementedError


class ProduceForm(NamedTuple):
    """The template of a Produce response for one partition, without the correlation id and the base offset."""

    pack: Callable[[int, int, bytes, int, bytes], bytes]
    size_bytes: int
    before: bytes
    after: bytes


class Acknowledged(Filled):
    """A Produce response: a template and the base offset."""

    __slots__ = ("_base_offset", "_form")

    def __init__(self, form: ProduceForm, base_offset: int) -> None:
        self._form = form
        self._base_offset = base_offset

    def buffers(self, correlation_id: int) -> tuple[Buffer, ...]:
        pack, size_bytes, before, after = self._form
        return (pack(size_bytes, correlation_id, before, self._base_offset, after),)


def produce_form(acknowledgement: produce.Response, version: int) -> ProduceForm:
    """Create the template. `acknowledgement` is a response for one partition, with MARK as its base offset."""
    before, mark, after = build(acknowledgement, version).partition(MARK_BYTES)
    assert mark, "an acknowledgement has a base offset"
    if version >= PRODUCE.flexible:
        before = b"\0" + before  # the tagged fields of the header
    pack = Struct(f">ii{len(before)}sq{len(after)}s").pack
    return ProduceForm(pack, 4 + len(before) + 8 + len(after), before, after)


class FetchForm(NamedTuple):
    """The template of a Fetch response for one partition, without correlation id, session id, three offsets and the
    records."""

    pack: Callable[[int, int, bytes, int, bytes, int, int, int, bytes], bytes]
    size_bytes: int
    before: bytes
    between: bytes
    after: bytes


class Fetched(Filled):
    """A Fetch response: a template and the values to fill in. `offsets` are the high watermark, the last stable offset
    and the start of the log."""

    __slots__ = ("_form", "_offsets", "_records", "session_id")

    def __init__(self, form: FetchForm, session_id: int, offsets: tuple[int, int, int], records: Buffer) -> None:
        self._form = form
        self.session_id = session_id
        self._offsets = offsets
        self._records = records

    def buffers(self, correlation_id: int) -> tuple[Buffer, ...]:
        """The whole frame. Large records are not copied."""
        pack, size_bytes, before, between, after = self._form
        high_watermark, last_stable, start = self._offsets
        session_id, records = self.session_id, self._records
        length = write_uvarint(len(records) + 1)
        size_bytes += len(length) + len(records)
        head = pack(size_bytes, correlation_id, before, session_id, between, high_watermark, last_stable, start, after)
        if len(records) < LARGE_BYTES:
            return (b"".join((head, length, records, _NO_RECORDS[1:])),)
        return head + length, records, _NO_RECORDS[1:]


def fetch_form(topic: str, topic_id: bytes, index: int, version: int, *, committed: bool) -> FetchForm | None:
    """Create the template; None if the marks cannot be distinguished from other bytes, or if the version is not
    flexible."""
    if version < FETCH.flexible:
        return None
    row = fetch.PartitionData(
        partition_index=index,
        high_watermark=MARK,
        last_stable_offset=MARK,
        log_start_offset=MARK,
        aborted_transactions=[] if committed else None,
        records=b"",
    )
    told = fetch.FetchableTopicResponse(topic=topic, topic_id=topic_id, partitions=[row])
    body = build(fetch.Response(session_id=SHORT_MARK, responses=[told]), version)
    before, _, rest = body.partition(SHORT_MARK_BYTES)
    between, _, after = rest.partition(MARK_BYTES * 3)
    if body.count(SHORT_MARK_BYTES) != 4 or not after.endswith(_NO_RECORDS):
        return None
    before, after = b"\0" + before, after[: -len(_NO_RECORDS)]
    pack = Struct(f">ii{len(before)}si{len(between)}sqqq{len(after)}s").pack
    size_bytes = 4 + len(before) + 4 + len(between) + 24 + len(after) + 3
    return FetchForm(pack, size_bytes, before, between, after)


class FetchedMany(Filled):
    """A Fetch response of many rows, which is encoded except for the correlation id. Large records are separate
    buffers."""

    __slots__ = ("_is_flexible", "body", "session_id")

    def __init__(self, session_id: int, body: list[Buffer], *, is_flexible: bool) -> None:
        self.session_id = session_id
        self.body = body
        self._is_flexible = is_flexible

    def buffers(self, correlation_id: int) -> tuple[Buffer, ...]:
        tags = b"\0" if self._is_flexible else b""
        size_bytes = 4 + len(tags) + sum(map(len, self.body))
        return (_SIZE_AND_ID.pack(size_bytes, correlation_id) + tags, *self.body)
