"""What a client's batch must be before it is appended, and the three cases in which it is changed.

Always checked, from the header: size, magic, CRC, count = last offset delta + 1, no control bit, maximum timestamp. The
records are opened only where a compacted topic must refuse null keys, where records may be too old, and where
`compression.type` is not the producer's.
"""

from __future__ import annotations

from kpybroker.config import LogSettings
from kpybroker.config.log_settings import LONG_MAX
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.storage.opening import LOG_APPEND_TIME_TYPE, opened, refusal
from kpybroker.wire.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_FROM,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    Batch,
)
from kpybroker.wire.checksum import crc32c
from kpybroker.wire.compression import CODEC_BY_NAME, Codec

RECORD_BYTES_MIN = 7
"""The smallest record: its length, attributes, two deltas, two absent fields and no headers."""
_NOT_A_CLIENTS = CONTROL | LOG_APPEND_TIME
_LAST_CODEC = int(Codec.ZSTD)


def changes_batches(settings: LogSettings) -> bool:
    """Whether `settings` need more of a batch than its header."""
    return (
        settings.compression_type != "producer"
        or settings.message_timestamp_type == LOG_APPEND_TIME_TYPE
        or _must_open(settings)
    )


def _must_open(settings: LogSettings) -> bool:
    """The header has the newest of the timestamps alone."""
    has_oldest = settings.message_timestamp_before_max_ms < LONG_MAX and not batch_time_is_ours(settings)
    return settings.compacted or has_oldest


def batch_time_is_ours(settings: LogSettings) -> bool:
    """Batches carry the time of their append."""
    return settings.message_timestamp_type == LOG_APPEND_TIME_TYPE


def check_header(batch: Batch, settings: LogSettings, now_ms: int) -> None:
    """Refuse a batch that no client may append. Raises KafkaError."""
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
            f"batch of {batch.record_count} records from offset {batch.base_offset}"
            f" with last offset delta {batch.last_offset_delta}",
        )
    body_bytes = size_bytes - HEADER_BYTES
    if body_bytes < (1 if attributes & CODEC_MASK else record_count * RECORD_BYTES_MIN):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{record_count} records cannot be in {body_bytes} bytes")
    if attributes and (attributes & _NOT_A_CLIENTS or attributes & CODEC_MASK > _LAST_CODEC):
        _refuse_attributes(batch)
    if batch.producer_id >= 0 and batch.base_sequence < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"sequence {batch.base_sequence} of producer {batch.producer_id}")
    latest = now_ms + settings.message_timestamp_after_max_ms
    if batch.max_timestamp > latest and not batch_time_is_ours(settings):
        text = f"timestamp {batch.max_timestamp} is after {latest}"
        raise refusal(ErrorCode.INVALID_TIMESTAMP, text, [batch.last_offset_delta])


def _refuse_attributes(batch: Batch) -> None:
    if batch.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients are not allowed to write control records")
    if batch.codec > Codec.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {batch.codec}")
    raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "clients are not allowed to set the timestamp type LogAppendTime")


def change(batch: Batch, settings: LogSettings, now_ms: int) -> Batch:
    """The batch as the topic wants it: opened and recompressed, stamped. Raises KafkaError."""
    codec = CODEC_BY_NAME.get(settings.compression_type, batch.codec)  # "producer" names none
    if _must_open(settings) or codec != batch.codec:
        batch = opened(batch, codec, settings, now_ms)
    if batch_time_is_ours(settings):
        batch.stamp(now_ms)
    return batch
