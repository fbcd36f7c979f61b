"""Checks a client's batch before it is appended, and decides whether its records must be opened.

The header is always checked: size, magic, CRC, record count (which must be the last offset delta + 1, and possible in
the number of bytes), control bit and maximum timestamp. Then the records are scanned. With
`kpybroker.record.validation=count`, they are not scanned if the topic is not compacted, accepts records of any age and
keeps the producer's compression.
"""

from __future__ import annotations

from typing import Final

from kpybroker.config import LogSettings
from kpybroker.config.log_settings import LONG_MAX
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.storage.log.reencoding import (
    LOG_APPEND_TIME_TYPE,
    RECORD_BYTES_MIN,
    RECORDS_LIMIT,
    Opening,
    opened,
    records_possible,
    refusal,
)
from kpybroker.wire.records.batch import CODEC_MASK, CONTROL, CRC_FROM, HEADER_BYTES, LOG_APPEND_TIME, Batch
from kpybroker.wire.records.checksum import crc32c
from kpybroker.wire.records.compression import CODEC_BY_NAME, Codec
from kpybroker.wire.records.decompressed import PIECE_BYTES
from kpybroker.wire.records.record_scan import SLICE_RECORDS
from kpybroker.wire.records.small_batches import are_sound, is_sole_record

NOTHING: Final = 0
RECORDS: Final = 1
ALL: Final = 2
"""The parts of a client's batch that were checked before its append: nothing, the records, or records and header."""
_NOT_A_CLIENTS: Final = CONTROL | LOG_APPEND_TIME
_LAST_CODEC: Final = int(Codec.ZSTD)
_SMALLEST_BYTES: Final = HEADER_BYTES + RECORD_BYTES_MIN


class Appended:
    """The offsets of an appended batch. For a duplicate, they are those of the original batch. The append time is -1
    with CreateTime."""

    __slots__ = ("base_offset", "duplicate", "last_offset", "log_append_time_ms")

    def __init__(
        self, base_offset: int, last_offset: int, log_append_time_ms: int = -1, *, duplicate: bool = False
    ) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.log_append_time_ms = log_append_time_ms
        self.duplicate = duplicate


def changes_batches(settings: LogSettings) -> bool:
    """Whether `settings` may change batches, or require more of them than being valid."""
    return (
        settings.compression_type != "producer"
        or settings.message_timestamp_type == LOG_APPEND_TIME_TYPE
        or _must_open(settings)
    )


def _must_open(settings: LogSettings) -> bool:
    """Whether the records must be opened, for example because the header does not contain the oldest timestamp."""
    has_oldest = settings.message_timestamp_before_max_ms < LONG_MAX and not batch_time_is_ours(settings)
    return settings.compacted or has_oldest


def batch_time_is_ours(settings: LogSettings) -> bool:
    """Whether the timestamp of batches is the time of their append (LogAppendTime)."""
    return settings.message_timestamp_type == LOG_APPEND_TIME_TYPE


def check_header(batch: Batch, settings: LogSettings, now_ms: int) -> None:
    """Raise KafkaError if clients may not append a batch, according to its header."""
    size_bytes, record_count, attributes = batch.size_bytes, batch.record_count, batch.attributes
    if size_bytes > settings.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"batch of {batch.size_bytes} bytes, max.message.bytes is {settings.max_message_bytes}",
        )
    if crc32c(batch.view[CRC_FROM:]) != batch.crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"CRC of the batch is not {batch.crc:#010x}")
    if size_bytes > settings.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"batch of {batch.size_bytes} bytes, segment.bytes is {settings.segment_bytes}",
        )
    if batch.base_offset or record_count <= 0 or record_count != batch.last_offset_delta + 1:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"batch with {batch.record_count} records from offset {batch.base_offset}"
            f" with last offset delta {batch.last_offset_delta}",
        )
    if attributes and (attributes & _NOT_A_CLIENTS or attributes & CODEC_MASK > _LAST_CODEC):
        _refuse_attributes(batch)
    if record_count > 1 or size_bytes < _SMALLEST_BYTES:
        _check_count(batch)
    if batch.producer_id >= 0 and batch.base_sequence < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"sequence {batch.base_sequence} of producer {batch.producer_id}")
    latest = now_ms + settings.message_timestamp_after_max_ms
    if batch.max_timestamp > latest and not batch_time_is_ours(settings):
        text = f"timestamp {batch.max_timestamp} is after {latest}"
        raise refusal(ErrorCode.INVALID_TIMESTAMP, text, [batch.last_offset_delta])


def _check_count(batch: Batch) -> None:
    count, body_bytes = batch.record_count, batch.size_bytes - HEADER_BYTES
    if count > records_possible(batch.codec, body_bytes):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{count} records cannot be in {body_bytes} bytes")
    if batch.codec and count > RECORDS_LIMIT:
        text = f"a compressed batch of {count} records: at most {RECORDS_LIMIT} are accepted"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)


def _refuse_attributes(batch: Batch) -> None:
    if batch.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients are not allowed to write control records")
    if batch.codec > Codec.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {batch.codec}")
    raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "clients are not allowed to set the timestamp type LogAppendTime")


def needs_no_walk(batch: Batch, settings: LogSettings) -> bool:
    """Check a small uncompressed batch, like most batches, if the topic requires no more than valid records.

    If the result is False, the batch may still be valid: `opening` has to check it.
    """
    if not settings.record_validation_full:
        return True
    count, newest = batch.record_count, batch.max_timestamp - batch.base_timestamp
    if batch.attributes & CODEC_MASK:
        return False
    if count > SLICE_RECORDS or batch.size_bytes > PIECE_BYTES:
        return False
    plain = bytes(batch.view[HEADER_BYTES:])
    if count == 1:
        return not newest and is_sole_record(plain)
    return are_sound(plain, count, newest)


def opening(batch: Batch, settings: LogSettings, now_ms: int) -> Opening:
    """Check and open a batch, and recompress it if the topic requires that. The append time is not set here.

    Raises KafkaError. The bytes of the given batch are not changed, because it may be opened again.
    """
    check_header(batch, settings, now_ms)
    codec = CODEC_BY_NAME.get(settings.compression_type, batch.codec)  # compression.type "producer" is not a codec
    if settings.record_validation_full or _must_open(settings) or codec != batch.codec:
        batch = yield from opened(batch, codec, settings, now_ms)
    return batch
