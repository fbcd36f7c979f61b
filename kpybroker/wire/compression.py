"""The five codecs of record batches; output is bounded before it is made.

Framing as Kafka's clients write it: gzip members, snappy in Xerial framing (raw snappy is read too, librdkafka sends
it), LZ4 frames with independent blocks, zstd frames. The libraries are imported on first use.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import IntEnum
from struct import Struct

from kpybroker.errors import ErrorCode, KafkaError

Buffer = bytes | bytearray | memoryview

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
_INT32 = Struct(">i")
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_BLOCK_BYTES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_LZ4_INDEPENDENT = 0x20
_LZ4_MAX_RATIO = 255
_LZ4_FAST = 1
LZ4_DEFAULT_LEVEL = 9
"""Of compression.lz4.level."""
_LZ4_WORD = Struct("<I")
_ZSTD_MAX_WINDOW_BYTES = 1 << 27
PIECE_BYTES = 64 << 10
"""Decompressed in one go."""


class Codec(IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_BY_NAME = {
    "none": Codec.NONE,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` in the framing Kafka's Java client reads; `level` is the codec's own, None for its default."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
            return packer.compress(data) + packer.flush()
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            import cramjam

            # as Kafka: its default is the fast compressor, any other level the high compression one. Java refuses
            # linked blocks
            level = _LZ4_FAST if level in (None, LZ4_DEFAULT_LEVEL) else level
            frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
            with memoryview(data) as view:
                for at in range(0, len(view), PIECE_BYTES):  # it holds the interpreter's lock
                    frame.compress(bytes(view[at : at + PIECE_BYTES]))
            return bytes(frame.finish())
        case Codec.ZSTD:
            import zstandard

            return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")


def decompress(codec: int, data: Buffer, limit_bytes: int) -> Buffer:
    """The plain bytes, at most `limit_bytes`.

    Raises KafkaError: MESSAGE_TOO_LARGE above the limit, CORRUPT_MESSAGE for bytes that are not the codec's,
    UNSUPPORTED_COMPRESSION_TYPE for an unknown codec.
    """
    match codec:
        case Codec.NONE:
            plain: Buffer = data
        case Codec.GZIP:
            plain = b"".join(_gzip_pieces(data, limit_bytes))
        case Codec.SNAPPY:
            plain = b"".join(_snappy_pieces(bytes(data), limit_bytes))
        case Codec.LZ4:
            plain = _decompress_lz4(data, limit_bytes)
        case Codec.ZSTD:
            plain = b"".join(_zstd_pieces(data, limit_bytes))
        case _:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")
    if len(plain) > limit_bytes:
        raise _too_large(limit_bytes)
    return plain


def pieces(codec: int, data: Buffer, limit_bytes: int) -> Iterator[bytes | memoryview]:
    """The plain bytes as they are decompressed, some PIECE_BYTES at a time, so that no more need be in memory.

    LZ4, and snappy in one block, come out whole: `whole_bytes` says how large that may be. Raises as `decompress` does,
    once it gets there.
    """
    match codec:
        case Codec.GZIP:
            yield from _gzip_pieces(data, limit_bytes)
        case Codec.SNAPPY:
            yield from _snappy_pieces(bytes(data), limit_bytes)
        case Codec.ZSTD:
            yield from _zstd_pieces(data, limit_bytes)
        case _:
            plain = memoryview(decompress(codec, data, limit_bytes))
            for at in range(0, len(plain), PIECE_BYTES):
                yield bytes(plain[at : at + PIECE_BYTES])


def whole_bytes(codec: int, data: Buffer) -> int:
    """What `pieces` may have to make in one go, in bytes; from headers alone. Raises KafkaError."""
    if codec == Codec.LZ4:
        return _lz4_bound(bytes(data))
    if codec == Codec.SNAPPY and bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _raw_snappy_bytes(data)
    return PIECE_BYTES


def _too_large(limit_bytes: int) -> KafkaError:
    return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"records decompress to more than {limit_bytes} bytes")


def _corrupt(codec: str, cause: object) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{codec} data cannot be decompressed: {cause}")


def _gzip_pieces(data: Buffer, limit_bytes: int) -> Iterator[bytes]:
    left = limit_bytes
    rest: Buffer = data
    while True:
        member = zlib.decompressobj(31)
        while not member.eof:
            try:
                part = member.decompress(rest, min(left + 1, PIECE_BYTES))
            except zlib.error as error:
                raise _corrupt("gzip", error) from error
            rest = member.unconsumed_tail
            left -= len(part)
            if left < 0:
                raise _too_large(limit_bytes)
            if not part and not rest and not member.eof:
                raise _corrupt("gzip", "truncated")
            yield part
        rest = member.unused_data
        if not rest:
            return


def _compress_snappy(data: Buffer) -> bytes:
    import cramjam

    parts = [_XERIAL_HEADER]
    for first in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(bytes(data[first : first + _XERIAL_BLOCK_BYTES])))
        parts.append(_INT32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _snappy_pieces(data: bytes, limit_bytes: int) -> Iterator[bytes]:
    if not data.startswith(_XERIAL_MAGIC):
        yield _decompress_raw_snappy(data, limit_bytes)
        return
    left = limit_bytes
    at = len(_XERIAL_HEADER)
    while at < len(data):
        if at + 4 > len(data):
            raise _corrupt("snappy", "truncated block length")
        (size,) = _INT32.unpack_from(data, at)
        at += 4
        if not 0 < size <= len(data) - at:
            raise _corrupt("snappy", f"block of {size} bytes with {len(data) - at} left")
        part = _decompress_raw_snappy(data[at : at + size], left)
        left -= len(part)
        yield part
        at += size


def _raw_snappy_bytes(block: Buffer) -> int:
    import cramjam

    try:
        return cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise _corrupt("snappy", error) from error


def _decompress_raw_snappy(block: bytes, limit_bytes: int) -> bytes:
    import cramjam

    if _raw_snappy_bytes(block) > limit_bytes:
        raise _too_large(limit_bytes)
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise _corrupt("snappy", error) from error


def check_lz4_frame(data: Buffer) -> None:
    """Refuse LZ4 that Java's consumer does not read, or not to its end, though `decompress` does.

    Raises KafkaError, with Apache Kafka's codes: UNKNOWN_SERVER_ERROR for blocks that depend on those before them,
    INVALID_RECORD for bytes behind the first frame, CORRUPT_MESSAGE for no frame.
    """
    frame = bytes(data)
    _, end = _lz4_frame(frame, 0)
    if not frame[4] & _LZ4_INDEPENDENT:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "LZ4 frame with linked blocks: send independent blocks")
    if end < len(frame):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{len(frame) - end} bytes after the LZ4 frame: send one frame")


def _lz4_bound(data: bytes) -> int:
    """The most bytes these LZ4 frames can hold, from their block lengths; walks headers only."""
    bound = at = 0
    while at < len(data):
        more, at = _lz4_frame(data, at)
        bound += more
    return bound


def _lz4_frame(data: bytes, at: int) -> tuple[int, int]:
    """The most bytes the LZ4 frame at this position can hold, and the position after it. Raises KafkaError."""
    if data[at : at + 4] != _LZ4_MAGIC or at + 7 > len(data):
        raise _corrupt("lz4", "no frame header")
    flags, descriptor = data[at + 4], data[at + 5]
    block_bytes = _LZ4_BLOCK_BYTES.get(descriptor >> 4 & 7)
    if block_bytes is None or flags >> 6 != 1 or flags & 1:
        raise _corrupt("lz4", "unsupported frame header")
    bound = 0
    at += 15 if flags & 0x08 else 7
    while True:
        if at + 4 > len(data):
            raise _corrupt("lz4", "truncated frame")
        (word,) = _LZ4_WORD.unpack_from(data, at)
        at += 4
        if not word:
            break
        size = word & 0x7FFFFFFF
        bound += min(size if word >> 31 else size * _LZ4_MAX_RATIO, block_bytes)
        at += size + (4 if flags & 0x10 else 0)
    return bound, at + (4 if flags & 0x04 else 0)


def _decompress_lz4(data: Buffer, limit_bytes: int) -> Buffer:
    import cramjam

    plain = bytes(data)
    bound = _lz4_bound(plain)
    output = bytearray(min(bound, limit_bytes))
    try:
        size = cramjam.lz4.decompress_into(plain, output)
    except cramjam.DecompressionError as error:
        if bound > limit_bytes and "whole buffer" in str(error):
            raise _too_large(limit_bytes) from error
        raise _corrupt("lz4", error) from error
    return memoryview(output)[:size]


def _zstd_pieces(data: Buffer, limit_bytes: int) -> Iterator[bytes]:
    import zstandard

    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
    left = limit_bytes
    try:
        with unpacker.stream_reader(data, read_across_frames=True) as reader:
            while part := reader.read(min(left + 1, PIECE_BYTES)):
                left -= len(part)
                if left < 0:
                    raise _too_large(limit_bytes)
                yield part
    except zstandard.ZstdError as error:
        raise _corrupt("zstd", error) from error
