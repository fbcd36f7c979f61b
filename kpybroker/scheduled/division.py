"""Divides a producer's batch into the records that are due and those that are scheduled.

The batch of the due records keeps its offsets, producer and sequence, as a batch from which compaction has removed
records. So the topic's partition checks the sequence of every batch of an idempotent producer, and each scheduled
record has an offset of its own, which its producer is told and which no other record will have.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

from kpybroker.config import LogSettings
from kpybroker.config.log_settings import LONG_MAX
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.scheduled.entries import RECORDS_MAX, Entry
from kpybroker.scheduled.times import DELIVER_AFTER, DELIVER_AT, due_ms
from kpybroker.storage.log.reencoding import ON_LOOP_BYTES, RECOMPRESSED_LIMIT_BYTES, refusal
from kpybroker.storage.log.slices import Work, nothing_open
from kpybroker.wire.records.batch import HEADER_BYTES, Batch, read_varint
from kpybroker.wire.records.compression import decompress
from kpybroker.wire.records.record_removal import emptied, thinned
from kpybroker.wire.records.record_scan import SLICE_RECORDS

ADDED_BYTES = 80
"""The headers of a delivered record that its producer has not sent take less than this."""
_MARK = b"deliver-a"
"""The names of both headers begin with this, so that most records need not be parsed."""
_BLAMED_MAX = 1000
INT_MAX = (1 << 31) - 1


class Part(NamedTuple):
    """A record of a batch: its bytes from `begin` to `end`, the delta of its offset, and its time if it has one."""

    begin: int
    end: int
    offset_delta: int
    due_ms: int | None


class DividedBatch(Batch):
    """The batch of the records that are due, and the records that the producer sent, some of which have a time."""

    __slots__ = ("accepted_ms", "parts", "plain", "sent_codec", "sent_timestamp")

    accepted_ms: int
    parts: list[Part]
    plain: bytes
    """The bytes of all records, to which `parts` refers."""
    sent_codec: int
    sent_timestamp: int
    """The codec and the base timestamp of the producer's batch."""

    def scheduled(self) -> list[Part]:
        """The records that are not due yet."""
        return [part for part in self.parts if part.due_ms is not None and part.due_ms > self.accepted_ms]

    def absent(self, present: Collection[int]) -> list[Part]:
        """The records with a time that are not in the topic, where it has those with the offset deltas in `present`.

        When the batch was sent for the first time, these were not due."""
        return [part for part in self.parts if part.due_ms is not None and part.offset_delta not in present]

    def entry(self, parts: Sequence[Part]) -> Entry:
        """The entry of some of the records, at least one."""
        rows, records = list[tuple[int, int, int]](), bytearray()
        for begin, end, delta, due in parts:
            rows.append((len(records), delta, due or 0))
            records += self.plain[begin:end]
        return Entry(self.accepted_ms, self.sent_timestamp, rows, bytes(records))


@lru_cache(maxsize=1000)
def settings_for_deliveries(settings: LogSettings) -> LogSettings:
    """The settings by which a topic accepts deliveries: without the limits that their records kept when they were
    accepted, and which may have been changed since."""
    return replace(
        settings,
        max_message_bytes=INT_MAX,
        segment_bytes=INT_MAX,
        message_timestamp_before_max_ms=LONG_MAX,
        message_timestamp_after_max_ms=LONG_MAX,
    )


def divided(batch: Batch, settings: LogSettings, now_ms: int) -> Work[Batch]:
    """The batch itself if no record has a time, otherwise a DividedBatch. The batch has been validated.

    Raises INVALID_RECORD for times that cannot be read or are too far ahead, MESSAGE_TOO_LARGE for scheduled records
    that would be too large with the headers of a delivery.
    """
    body = batch.view[HEADER_BYTES:]
    if batch.codec:
        work = partial(decompress, batch.codec, body, RECOMPRESSED_LIMIT_BYTES)
        plain = bytes(work() if len(body) <= ON_LOOP_BYTES else (yield work))
    else:
        plain = bytes(body)
    if _MARK not in plain:
        return batch
    parts, at, reader = list[Part](), 0, _PartReader(plain, now_ms)
    for first in range(0, batch.record_count, SLICE_RECORDS):
        at = reader.read(at, min(SLICE_RECORDS, batch.record_count - first), parts)
        yield nothing_open
    _check_parts(parts, reader.wrong, settings, now_ms)
    if all(part.due_ms is None for part in parts):
        return batch
    return _divide(batch, plain, parts, now_ms)


def _check_parts(parts: list[Part], wrong: list[tuple[int, str]], settings: LogSettings, now_ms: int) -> None:
    """Raises INVALID_RECORD, MESSAGE_TOO_LARGE."""
    ahead_ms, limit_bytes = settings.delivery_max_ahead_ms, settings.max_message_bytes
    later = [part for part in parts if part.due_ms is not None and part.due_ms > now_ms]
    for part in later:
        if (part.due_ms or 0) > now_ms + ahead_ms and len(wrong) < _BLAMED_MAX:
            wrong.append((part.offset_delta, f"due more than kpybroker.delivery.max.ahead.ms={ahead_ms} ahead"))
    if wrong:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"the record cannot be scheduled: {wrong[0][1]}", wrong)
    for part in later:
        if part.end - part.begin + HEADER_BYTES + ADDED_BYTES > limit_bytes:
            text = f"a scheduled record of {part.end - part.begin} bytes, max.message.bytes is {limit_bytes}"
            raise refusal(ErrorCode.MESSAGE_TOO_LARGE, text, [part.offset_delta])
    if len(later) > RECORDS_MAX:
        text = f"a batch with {len(later)} scheduled records: at most {RECORDS_MAX} are accepted"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)


class _PartReader:
    """Reads the parts of a batch. The records have been validated.

    Numbers of one or two bytes are decoded in place, because calls would take most of the time.
    """

    def __init__(self, plain: bytes, now_ms: int) -> None:
        self._plain = plain
        self._now_ms = now_ms
        self.wrong: list[tuple[int, str]] = []
        """Offset deltas and reasons of records whose times cannot be read."""

    def read(self, at: int, count: int, parts: list[Part]) -> int:
        """Add the next `count` records from position `at` on. Returns the position after them."""
        plain, add, new = self._plain, parts.append, tuple.__new__
        known, known_due = b"", None
        for _ in range(count):
            begin = at
            size, at = varint_at(plain, at)
            end = at + size
            _, at = varint_at(plain, at + 1)
            delta, at = varint_at(plain, at)
            at = headers_at(plain, at)
            due = None
            if plain[at]:
                headers = plain[at:end]
                if headers != known:  # a producer often gives all records the same delay
                    known, known_due = headers, self._due_ms(headers, delta)
                due = known_due
            add(new(Part, (begin, end, delta, due)))
            at = end
        return at

    def _due_ms(self, headers: bytes, delta: int) -> int | None:
        """The time in the headers of a record; None if it has none, or one that cannot be read."""
        if _MARK not in headers:
            return None
        try:
            return _due_of(headers, self._now_ms)
        except ValueError as error:
            if len(self.wrong) < _BLAMED_MAX:
                self.wrong.append((delta, str(error)))
            return None


def varint_at(plain: bytes, at: int) -> tuple[int, int]:
    """Like `read_varint`, but faster for numbers of up to two bytes."""
    byte = plain[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    more = plain[at + 1]
    if more < 0x80:
        byte = byte & 0x7F | more << 7
        return (byte >> 1) ^ -(byte & 1), at + 2
    return read_varint(plain, at)


def _due_of(headers: bytes, now_ms: int) -> int | None:
    """The time in the headers of a record; None if it has none. Raises ValueError."""
    count, at = read_varint(headers, 0)
    found: tuple[bytes, bytes | None] | None = None
    for _ in range(count):
        size, at = read_varint(headers, at)
        name = headers[at : at + size]
        size, at = read_varint(headers, at + size)
        if name in (DELIVER_AT, DELIVER_AFTER):
            found = name, headers[at : at + size] if size >= 0 else None
        at += max(size, 0)
    return None if found is None else due_ms(*found, now_ms)


def headers_at(plain: bytes, at: int) -> int:
    """The position of the number of headers of the record whose key begins at `at`."""
    size, at = varint_at(plain, at)
    if size > 0:
        at += size
    size, at = varint_at(plain, at)
    return at + size if size > 0 else at


def _divide(batch: Batch, plain: bytes, parts: list[Part], now_ms: int) -> DividedBatch:
    kept, count = bytearray(), 0
    for begin, end, _, due in parts:
        if due is None or due <= now_ms:
            kept += plain[begin:end]
            count += 1
    if count == len(parts):
        found = DividedBatch(batch.view)
    else:
        due_now = thinned(batch, kept, count, batch.max_timestamp, None) if count else emptied(batch)
        found = DividedBatch(memoryview(bytearray(due_now)))
    found.accepted_ms, found.parts, found.plain = now_ms, parts, plain
    found.sent_codec, found.sent_timestamp = batch.codec, batch.base_timestamp
    return found
