"""Opens batches before they are appended: scans their records, and recompresses them if necessary.

As in Apache Kafka, a batch must contain as many records as its header states. The records must have timestamps that the
topic accepts and, if the topic is compacted, keys. Unlike in Kafka, which renumbers records, their offsets must be
consecutive. Records are not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from kpybroker.config import LogSettings
from kpybroker.config.log_settings import LONG_MAX
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.storage.log.slices import Work
from kpybroker.wire.records.batch import HEADER_BYTES, Batch, with_body
from kpybroker.wire.records.compression import LZ4_DEFAULT_LEVEL, Codec, clients_pieces, compress, stored_pieces
from kpybroker.wire.records.decompressed import PIECE_BYTES, Load, Part
from kpybroker.wire.records.record_scan import Walk, walk_through

RECORDS_LIMIT = 1 << 20
"""The maximum number of records in a compressed batch, because a few bytes of zstd can contain millions."""
HEADERS_LIMIT = 1 << 22
"""The maximum number of headers in a compressed batch, for the same reason. Four headers take as long as one record."""
PLAIN_LIMIT_BYTES = 128 << 20
"""The maximum decompressed size of a batch. Compaction can decompress batches of this size, too."""
RECOMPRESSED_LIMIT_BYTES = 32 << 20
"""The maximum decompressed size of a batch that is recompressed, because the whole batch is in memory then."""
ON_LOOP_BYTES = 1 << 20
"""The maximum number of bytes that are decompressed at once on the event loop. Larger batches are decompressed on a
thread."""
COMPRESSED_ON_LOOP_BYTES = 64 << 10
SLOWLY_ON_LOOP_BYTES = 8 << 10
"""The maximum number of bytes that are compressed at once on the event loop, in one to three milliseconds.
SLOWLY_ON_LOOP_BYTES applies to slow compression levels."""
RECORD_BYTES_MIN = 7
"""The size of the smallest record: length, attributes, two deltas, null key, null value and no headers."""
LOG_APPEND_TIME_TYPE = "LogAppendTime"
_EVER = 1 << 64
_LEVELS: dict[int, Callable[[LogSettings], int]] = {
    Codec.GZIP: lambda settings: settings.compression_gzip_level,
    Codec.LZ4: lambda settings: settings.compression_lz4_level,
    Codec.ZSTD: lambda settings: settings.compression_zstd_level,
}
_SLOW_FROM: dict[int, int] = {Codec.GZIP: 7, Codec.LZ4: 3, Codec.ZSTD: 8}
"""From these compression levels on, compressing a megabyte takes 20 to 400 ms."""
_BYTES_PER_BYTE: dict[int, int] = {
    Codec.NONE: 1,
    Codec.GZIP: 1032,
    Codec.SNAPPY: 64,
    Codec.LZ4: 255,
    Codec.ZSTD: 1 << 17,
}
"""An upper bound for the number of bytes that one compressed byte can contain, by codec."""
Opening = Work[Batch]
"""Work that opens a batch and returns the batch to append."""


def refusal(code: ErrorCode, text: str, records: list[int]) -> KafkaError:
    """An error with the indexes of the invalid records in the batch."""
    return KafkaError(code, text, [(index, text) for index in records])


def records_possible(codec: int, body_bytes: int) -> int:
    """An upper bound for the number of records in `body_bytes`."""
    return body_bytes * _BYTES_PER_BYTE[codec] // RECORD_BYTES_MIN


def opened(batch: Batch, codec: int, settings: LogSettings, now_ms: int) -> Opening:
    """Check the records of a batch, and return the batch compressed with `codec`. Raises KafkaError."""
    anew = batch.codec != codec
    earliest, latest = _times_taken(settings, now_ms)
    base, is_ours = batch.base_timestamp, settings.message_timestamp_type == LOG_APPEND_TIME_TYPE
    found = Walk(
        earliest - base,
        latest - base,
        timeless=-1 - base,
        needs_keys=settings.compacted,
        headers_limit=HEADERS_LIMIT if batch.codec else None,
    )
    kept: list[Part] = []
    try:
        source = plain_pieces(batch, RECOMPRESSED_LIMIT_BYTES if anew else PLAIN_LIMIT_BYTES, clients_pieces)
        yield from walk_through(found, _keeping(source, kept) if anew else source, batch.record_count)
    except KafkaError as error:
        if error.code != ErrorCode.CORRUPT_MESSAGE:
            raise
        # as in Kafka, because Java clients would retry after the original error
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, error.message) from error
    if settings.compacted and found.without_key:
        text = "a compacted topic cannot accept a record without a key"
        raise refusal(ErrorCode.INVALID_RECORD, text, found.without_key)
    if found.out_of_time:
        text = f"the timestamp of a record is not within [{earliest}, {latest}]"
        raise refusal(ErrorCode.INVALID_TIMESTAMP, text, found.out_of_time)
    newest = batch.max_timestamp if is_ours else base + found.newest
    if anew:
        return (yield from _compressed(batch, b"".join(kept), codec, newest, settings))
    if newest != batch.max_timestamp:
        batch.stamp(newest, 0)
    return batch


def plain_pieces(
    batch: Batch,
    limit_bytes: int,
    decompressed: Callable[[int, memoryview, int], Iterable[Part | Load]] = stored_pieces,
) -> Iterable[Part | Load]:
    """The records of the batch, decompressed on demand to at most `limit_bytes`."""
    body, codec = batch.view[HEADER_BYTES:], batch.codec
    if codec:
        return decompressed(codec, body, limit_bytes)
    if len(body) <= PIECE_BYTES:
        return (body,)
    return (body[at : at + PIECE_BYTES] for at in range(0, len(body), PIECE_BYTES))


def compressed_on_loop_bytes(codec: int, level: int | None) -> int:
    """The maximum size of records that are compressed on the event loop. `level` is None for a codec without levels."""
    if codec == Codec.NONE:
        return RECOMPRESSED_LIMIT_BYTES
    is_slow = level is not None and level >= _SLOW_FROM[codec] and (codec, level) != (Codec.LZ4, LZ4_DEFAULT_LEVEL)
    return SLOWLY_ON_LOOP_BYTES if is_slow else COMPRESSED_ON_LOOP_BYTES


def _keeping(source: Iterable[Part | Load], kept: list[Part]) -> Iterator[Part | Load]:
    for piece in source:
        if isinstance(piece, Part):
            kept.append(piece)
        yield piece


def _times_taken(settings: LogSettings, now_ms: int) -> tuple[int, int]:
    if settings.message_timestamp_type == LOG_APPEND_TIME_TYPE:
        return -_EVER, _EVER
    latest = min(now_ms + settings.message_timestamp_after_max_ms, LONG_MAX)
    return now_ms - settings.message_timestamp_before_max_ms, latest


def _compressed(batch: Batch, plain: bytes, codec: int, newest: int, settings: LogSettings) -> Opening:
    level = _LEVELS[codec](settings) if codec in _LEVELS else None
    work = partial(compress, codec, plain, level)
    body = work() if len(plain) <= compressed_on_loop_bytes(codec, level) else (yield work)
    changed = with_body(batch, codec, body, newest)
    if changed.size_bytes > settings.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"batch of {changed.size_bytes} bytes after compression, max.message.bytes is {settings.max_message_bytes}",
        )
    return changed
