"""Compresses and decompresses record batches with the five codecs. The size of the output is limited in advance.

The framing is that of Kafka's clients: gzip members, snappy in Xerial framing (or raw snappy, which librdkafka sends),
LZ4 frames with independent blocks, and zstd frames. The libraries are imported on first use.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import IntEnum
from functools import partial
from struct import Struct

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records import lz4_frames, zstd_frames
from kpybroker.wire.records.decompressed import (
    IN_PLACE_BYTES,
    READ_BYTES,
    Part,
    Pieces,
    at_once,
    corrupt,
    even,
    loaded,
    too_large,
)

Buffer = bytes | bytearray | memoryview

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
_INT32 = Struct(">i")
_LZ4_FAST = 1
LZ4_DEFAULT_LEVEL = 9
"""The default of the topic setting compression.lz4.level."""
_SNAPPY_MAX_RATIO = 64
_GZIP_NEXT_BYTES = 1 << 10
"""The input bytes of the first read in each gzip member after the first. The number doubles with each further read of
the same member. It is small at first because zlib copies the bytes after the end of a member."""


class Codec(IntEnum):
    """The compression codec, in the low three bits of a batch's attributes."""

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
    """Compress `data` in the framing that Kafka's Java client reads. `level` depends on the codec; None means its
    default."""
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

            # as in Kafka, the default level selects the fast compressor, and any other level the high compression one;
            # Java's consumer refuses linked blocks
            level = _LZ4_FAST if level in (None, LZ4_DEFAULT_LEVEL) else level
            frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
            with memoryview(data) as view:
                for at in range(0, len(view), READ_BYTES):  # in pieces, because a call holds the interpreter's lock
                    frame.compress(bytes(view[at : at + READ_BYTES]))
            return bytes(frame.finish())
        case Codec.ZSTD:
            import zstandard

            return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")


def decompress(codec: int, data: Buffer, limit_bytes: int) -> Buffer:
    """The decompressed bytes, at most `limit_bytes`.

    Raises KafkaError: MESSAGE_TOO_LARGE above the limit, CORRUPT_MESSAGE for bytes that the codec cannot read,
    UNSUPPORTED_COMPRESSION_TYPE for an unknown codec.
    """
    match codec:
        case Codec.NONE:
            plain: Buffer = data
        case Codec.GZIP:
            plain = b"".join(_gzip_pieces(data, limit_bytes))
        case Codec.SNAPPY:
            plain = b"".join(at_once(_snappy_pieces(bytes(data), limit_bytes)))
        case Codec.LZ4:
            plain = _decompress_lz4(limit_bytes, data)
        case Codec.ZSTD:
            plain = b"".join(_zstd_pieces(data, limit_bytes))
        case _:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")
    if len(plain) > limit_bytes:
        raise too_large(limit_bytes)
    return plain


def pieces(codec: int, data: Buffer, limit_bytes: int) -> Iterator[Part]:
    """The decompressed bytes of stored data, in pieces of at most PIECE_BYTES.

    The pieces are cut from parts of up to `whole_bytes`. Raises the same errors as `decompress`, at the piece where
    they occur.
    """
    return at_once(stored_pieces(codec, data, limit_bytes))


def whole_bytes(codec: int, data: Buffer) -> int:
    """The most bytes that `pieces` may have to decompress at once. This reads only headers. Raises KafkaError."""
    match codec:
        case Codec.LZ4:
            return lz4_frames.largest_part_bytes(bytes(data))
        case Codec.SNAPPY:
            return max((size for _, size in _snappy_blocks(bytes(data))), default=0)
    return READ_BYTES


def stored_pieces(codec: int, data: Buffer, limit_bytes: int) -> Pieces:
    """Like `pieces`, but for each large part that must be decompressed at once, this yields a function. The caller must
    call it, on any thread, before it requests the next piece."""
    match codec:
        case Codec.GZIP:
            return even(_gzip_pieces(data, limit_bytes), limit_bytes)
        case Codec.SNAPPY:
            return even(_snappy_pieces(bytes(data), limit_bytes), limit_bytes)
        case Codec.LZ4:
            whole = partial(_decompress_lz4, limit_bytes)
            return even(lz4_frames.stored_pieces(bytes(data), whole), limit_bytes)
        case Codec.ZSTD:
            return even(_zstd_pieces(data, limit_bytes), limit_bytes)
    return even((bytes(decompress(codec, data, limit_bytes)),), limit_bytes)


def clients_pieces(codec: int, data: Buffer, limit_bytes: int) -> Pieces:
    """Like `stored_pieces`, but for batches from clients. Accepts only frames that Java's consumer reads completely.

    Also raises UNKNOWN_SERVER_ERROR and INVALID_RECORD for LZ4; see `lz4_frames.pieces`.
    """
    match codec:
        case Codec.LZ4:
            whole = partial(_decompress_lz4, limit_bytes)
            return even(lz4_frames.pieces(bytes(data), whole), limit_bytes)
        case Codec.ZSTD:
            return even(zstd_frames.pieces(bytes(data)), limit_bytes)
    return stored_pieces(codec, data, limit_bytes)


def _gzip_pieces(data: Buffer, limit_bytes: int) -> Iterator[bytes]:
    left = limit_bytes
    at, size = 0, READ_BYTES
    while True:
        member = zlib.decompressobj(31)
        while not member.eof:
            rest: Buffer = data[at : at + size]
            at += len(rest)
            size = min(2 * size, READ_BYTES)
            if not rest:
                raise corrupt("gzip", "truncated")
            while rest and not member.eof:
                try:
                    part = member.decompress(rest, min(left + 1, READ_BYTES))
                except zlib.error as error:
                    raise corrupt("gzip", error) from error
                rest = member.unconsumed_tail
                left -= len(part)
                if left < 0:
                    raise too_large(limit_bytes)
                yield part
        at -= len(member.unused_data)
        if at >= len(data):
            return
        size = _GZIP_NEXT_BYTES


def _compress_snappy(data: Buffer) -> bytes:
    import cramjam

    parts = [_XERIAL_HEADER]
    for first in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(bytes(data[first : first + _XERIAL_BLOCK_BYTES])))
        parts.append(_INT32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _snappy_pieces(data: bytes, limit_bytes: int) -> Pieces:
    left = limit_bytes
    for block, plain_bytes in _snappy_blocks(data):
        if plain_bytes > left:
            raise too_large(limit_bytes)
        left -= plain_bytes
        if plain_bytes > IN_PLACE_BYTES:
            yield from loaded(partial(_decompress_raw_snappy, block), plain_bytes)
        else:
            yield _decompress_raw_snappy(block)


def _snappy_blocks(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Each block with its decompressed size. Raises KafkaError."""
    if not data.startswith(_XERIAL_MAGIC):
        yield data, _raw_snappy_bytes(data)
        return
    at = len(_XERIAL_HEADER)
    while at < len(data):
        if at + 4 > len(data):
            raise corrupt("snappy", "truncated block length")
        (size,) = _INT32.unpack_from(data, at)
        at += 4
        if not 0 < size <= len(data) - at:
            raise corrupt("snappy", f"a block of {size} bytes, but only {len(data) - at} are left")
        block = data[at : at + size]
        yield block, _raw_snappy_bytes(block)
        at += size


def _raw_snappy_bytes(block: bytes) -> int:
    """The decompressed size in a block's header. Raises KafkaError."""
    import cramjam

    try:
        size_bytes = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise corrupt("snappy", error) from error
    if size_bytes > _SNAPPY_MAX_RATIO * len(block):
        raise corrupt("snappy", f"a block of {len(block)} bytes decompresses to {size_bytes} bytes")
    return size_bytes


def _decompress_raw_snappy(block: bytes) -> Part:
    import cramjam

    try:
        return memoryview(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise corrupt("snappy", error) from error


def _decompress_lz4(limit_bytes: int, data: Buffer, bound_bytes: int | None = None) -> memoryview:
    import cramjam

    frames = bytes(data)
    bound = lz4_frames.bound_bytes(frames) if bound_bytes is None else bound_bytes
    output = bytearray(min(bound, limit_bytes))
    try:
        size = cramjam.lz4.decompress_into(frames, output)
    except cramjam.DecompressionError as error:
        if bound > limit_bytes and "whole buffer" in str(error):
            raise too_large(limit_bytes) from error
        raise corrupt("lz4", error) from error
    return memoryview(output)[:size]


def _zstd_pieces(data: Buffer, limit_bytes: int) -> Iterator[bytes]:
    import zstandard

    unpacker = zstandard.ZstdDecompressor(max_window_size=zstd_frames.WINDOW_BYTES_MAX)
    left = limit_bytes
    try:
        with unpacker.stream_reader(data, read_across_frames=True) as reader:
            while part := reader.read(min(left + 1, READ_BYTES)):
                left -= len(part)
                if left < 0:
                    raise too_large(limit_bytes)
                yield part
    except zstandard.ZstdError as error:
        raise corrupt("zstd", error) from error
