"""Batches that a topic makes the broker open: their records walked over, their bytes compressed another way.

As in Apache Kafka, an opened batch must have the records its header promises, with timestamps that the topic takes, and
with keys if it is compacted. Their offsets must follow one another (Kafka numbers them anew): no record is changed.
"""

from __future__ import annotations

from collections.abc import Callable

from kpybroker.config import LogSettings
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.batch import HEADER_BYTES, Batch, with_body
from kpybroker.wire.compression import Codec, compress, decompress
from kpybroker.wire.walking import Walk, walk

RECORDS_LIMIT = 100_000
"""Records of a batch that is opened, on the loop: a few bytes of zstd can say millions."""
PLAIN_LIMIT_BYTES = 32 << 20
"""What such a batch may decompress to."""
NAMED_LIMIT = 1000
"""Records that one refusal names."""
LOG_APPEND_TIME_TYPE = "LogAppendTime"
_EVER = 1 << 64
_LEVELS: dict[int, Callable[[LogSettings], int]] = {
    Codec.GZIP: lambda settings: settings.compression_gzip_level,
    Codec.LZ4: lambda settings: settings.compression_lz4_level,
    Codec.ZSTD: lambda settings: settings.compression_zstd_level,
}


def refusal(code: ErrorCode, text: str, records: list[int]) -> KafkaError:
    """A refusal that names the records to blame by their index in the batch."""
    error = KafkaError(code, text)
    error.records = [(index, text) for index in records[:NAMED_LIMIT]]
    return error


def opened(batch: Batch, codec: int, settings: LogSettings, now_ms: int) -> Batch:
    """The batch with its records checked, and compressed with `codec`. Raises KafkaError."""
    if batch.record_count > RECORDS_LIMIT:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {batch.record_count} records, where the topic's settings make the broker open it: at most "
            f"{RECORDS_LIMIT} are",
        )
    plain = bytes(decompress(batch.codec, batch.view[HEADER_BYTES:], PLAIN_LIMIT_BYTES))
    earliest, latest = _times_taken(settings, now_ms)
    found = walk(plain, batch.record_count, earliest - batch.base_timestamp, latest - batch.base_timestamp)
    if settings.compacted and found.without_key:
        text = "a compacted topic cannot accept a record without a key"
        raise refusal(ErrorCode.INVALID_RECORD, text, found.without_key)
    if found.out_of_time:
        _refuse_times(batch, found, earliest, latest)
    return batch if batch.codec == codec else _compressed(batch, plain, codec, found, settings)


def _times_taken(settings: LogSettings, now_ms: int) -> tuple[int, int]:
    if settings.message_timestamp_type == LOG_APPEND_TIME_TYPE:
        return -_EVER, _EVER
    return now_ms - settings.message_timestamp_before_max_ms, now_ms + settings.message_timestamp_after_max_ms


def _refuse_times(batch: Batch, found: Walk, earliest: int, latest: int) -> None:
    """A record without a timestamp (-1) is taken at any time."""
    late = [index for index, delta in found.out_of_time if batch.base_timestamp + delta != -1]
    if late:
        text = f"the timestamp of a record is not within [{earliest}, {latest}]"
        raise refusal(ErrorCode.INVALID_TIMESTAMP, text, late)


def _compressed(batch: Batch, plain: bytes, codec: int, found: Walk, settings: LogSettings) -> Batch:
    level = _LEVELS[codec](settings) if codec in _LEVELS else None
    changed = with_body(batch, codec, compress(codec, plain, level), batch.base_timestamp + found.newest)
    if changed.size_bytes > settings.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"batch of {changed.size_bytes} bytes after compression, max.message.bytes is {settings.max_message_bytes}",
        )
    return changed
