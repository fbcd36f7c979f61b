"""Decompresses Zstandard frames, a few blocks at a time. Source: RFC 8878, "Zstandard Compression and the
application/zstd Media Type"."""

from __future__ import annotations

from collections.abc import Iterator

from kpybroker.wire.records.decompressed import READ_BYTES, corrupt

WINDOW_BYTES_MAX = 1 << 27
"""The largest window that Java's consumer accepts."""
FEW_BLOCKS = 8
"""The number of blocks that are decompressed at once, if they fit into a piece."""
_MAGIC = 0xFD2FB528
_SKIPPABLE, _SKIPPABLE_MASK = 0x184D2A50, 0xFFFFFFF0
_BLOCK_BYTES_MAX = 128 << 10
_SINGLE_SEGMENT, _CHECKSUM = 0x20, 0x04
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)
_RAW, _REPEATED, _COMPRESSED = 0, 1, 2


def pieces(data: bytes) -> Iterator[bytes]:
    """The decompressed bytes of one or more complete frames. A piece may be empty.

    Raises KafkaError: CORRUPT_MESSAGE for an invalid or incomplete frame. The decompressor itself accepts an incomplete
    frame at the end, but Java's consumer does not.
    """
    import zstandard

    unpacker = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
    at = 0
    while at < len(data):
        magic = int.from_bytes(data[at : at + 4], "little")
        if magic & _SKIPPABLE_MASK == _SKIPPABLE and at + 8 <= len(data):
            at = _within(data, at + 8 + int.from_bytes(data[at + 4 : at + 8], "little"))
            yield b""
            continue
        frame = unpacker.decompressobj()
        try:
            for end in _steps(data, at, magic):
                part = frame.decompress(data[at:end])
                at = end
                yield part
        except zstandard.ZstdError as error:
            raise corrupt("zstd", error) from error
        if not frame.eof or frame.unused_data:
            raise corrupt("zstd", "the frame does not end with its last block")


def _steps(data: bytes, at: int, magic: int) -> Iterator[int]:
    """The positions in the frame up to which input is passed to the decompressor at once. The last one is the frame's
    end."""
    if magic != _MAGIC or at + 5 > len(data):
        raise corrupt("zstd", "no frame header")
    flags = data[at + 4]
    single = 1 if flags & _SINGLE_SEGMENT else 0
    content_size_bytes = _CONTENT_SIZE_BYTES[flags >> 6] or single
    at += 5 + (1 - single) + _DICTIONARY_ID_BYTES[flags & 3] + content_size_bytes
    bound = count = 0
    while True:
        word = int.from_bytes(data[_within(data, at + 3) - 3 : at + 3], "little")
        kind, size = word >> 1 & 3, word >> 3
        at = _within(data, at + 3 + (1 if kind == _REPEATED else size))
        bound += _BLOCK_BYTES_MAX if kind == _COMPRESSED else size
        count += 1
        if word & 1:
            yield _within(data, at + (4 if flags & _CHECKSUM else 0))
            return
        if bound >= READ_BYTES or count >= FEW_BLOCKS:
            yield at
            bound = count = 0


def _within(data: bytes, at: int) -> int:
    if at > len(data):
        raise corrupt("zstd", "truncated frame")
    return at
