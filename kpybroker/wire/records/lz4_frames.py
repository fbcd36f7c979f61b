"""Reads LZ4 frames, block by block. Source: "LZ4 Frame Format Description", version 1.6."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct
from typing import NamedTuple

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.decompressed import IN_PLACE_BYTES, Load, Part, Pieces, corrupt, loaded

MAGIC = b"\x04\x22\x4d\x18"
FEW_BLOCKS = 64
"""A frame of at most this many blocks and IN_PLACE_BYTES is decompressed as a whole. This is the case for most
batches."""
_MAX_RATIO = 255
_BLOCK_BYTES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_INDEPENDENT, _BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM = 0x20, 0x10, 0x08, 0x04
_RESERVED = 0x03
_VERSION = 0x40
_RESERVED_SIZE = 0x8F
_AS_IT_IS = 1 << 31
"""The bit in a block's length that marks an uncompressed block."""
_WORD = Struct("<I")
_CONTENT_BYTES = Struct("<Q")
_END = bytes(4)
_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
_MASK = 0xFFFFFFFF


class Header(NamedTuple):
    """The header of a frame. `checked` verifies its checksum."""

    flags: int
    block_bytes: int
    """The largest possible size of a block's content."""
    first: int
    """The position of the first block."""

    @property
    def is_linked(self) -> bool:
        """Whether blocks may depend on previous ones."""
        return not self.flags & _INDEPENDENT


class Block(NamedTuple):
    """The position of a block. If the frame has block checksums, one follows the data."""

    at: int
    """The position of the block's length."""
    word: int
    bound_bytes: int
    """The largest possible size of the block's content."""
    end: int


def header_at(data: bytes, at: int) -> Header:
    """The header of the frame at a position. Raises KafkaError."""
    if data[at : at + 4] != MAGIC or at + 7 > len(data):
        raise corrupt("lz4", "no frame header")
    flags, size = data[at + 4], data[at + 5]
    block_bytes = _BLOCK_BYTES.get(size >> 4 & 7)
    if block_bytes is None or flags >> 6 != 1 or flags & _RESERVED or size & _RESERVED_SIZE:
        raise corrupt("lz4", "unsupported frame header")
    return Header(flags, block_bytes, at + (15 if flags & _CONTENT_SIZE else 7))


def blocks(data: bytes, header: Header) -> Iterator[Block]:
    """The blocks of a frame. The last one has `word` 0, and its end is the end of the frame. Raises KafkaError."""
    flags, block_bytes, at = header
    more = 4 if flags & _BLOCK_CHECKSUM else 0
    while True:
        if at + 4 > len(data):
            raise corrupt("lz4", "truncated frame")
        (word,) = _WORD.unpack_from(data, at)
        size = word & 0x7FFFFFFF
        if not word:
            end = at + (8 if flags & _CONTENT_CHECKSUM else 4)
        elif size > block_bytes:
            raise corrupt("lz4", f"a block of {size} bytes, but the frame allows at most {block_bytes}")
        else:
            end = at + 4 + size + more
        if end > len(data):
            raise corrupt("lz4", "truncated frame")
        yield Block(at, word, min(size if word & _AS_IT_IS else size * _MAX_RATIO, block_bytes), end)
        if not word:
            return
        at = end


def few_blocks(data: bytes) -> int | None:
    """The largest possible size of the content of a client's frame, if it has few blocks and at most IN_PLACE_BYTES;
    else None.

    Raises KafkaError, as `pieces` does.
    """
    bound = 0
    for number, block in enumerate(blocks(data, _clients(data))):
        if not block.word:
            _check_end(data, block.end)
            return bound
        _check_block(data, block)
        bound += block.bound_bytes
        if number >= FEW_BLOCKS or bound > IN_PLACE_BYTES:
            return None
    raise AssertionError


def pieces(data: bytes, decompress_whole: Callable[[bytes, int | None], Part]) -> Pieces:
    """The decompressed bytes of a client's frame, one piece for each block. If there are few blocks, `decompress_whole`
    decompresses all of them. `even` joins and cuts the pieces.
    """
    bound = few_blocks(data)
    if bound is not None:
        yield decompress_whole(data, bound)
        return
    for block, part in _parts(data, 0, _clients(data)):
        if not block.word:
            _check_end(data, block.end)
        else:
            _check_block(data, block)
            yield part


def stored_pieces(data: bytes, decompress_whole: Callable[[bytes, int | None], Part]) -> Pieces:
    """Like `pieces`, but for frames of any form. A frame with linked blocks is decompressed as a whole. Raises
    KafkaError."""
    at = 0
    while at < len(data):
        header = header_at(data, at)
        if header.is_linked:
            yield from loaded(partial(decompress_whole, data[at:], None), IN_PLACE_BYTES + 1)
            return
        for block, part in _parts(data, at, header):
            at = block.end
            yield part


def _parts(data: bytes, at: int, header: Header) -> Iterator[tuple[Block, Part | Load]]:
    """The blocks of the frame at a position, and their decompressed content."""
    content = checked(data, at, header)
    size_bytes = 0
    for block in blocks(data, header):
        if not block.word:
            content.check(size_bytes, data[block.at + 4 : block.end])
            yield block, b""
            return
        for part in loaded(partial(content.plain, data, block), block.bound_bytes):
            if isinstance(part, Part):
                size_bytes += len(part)
            yield block, part


def _clients(data: bytes) -> Header:
    header = header_at(data, 0)
    if header.is_linked:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "an LZ4 frame with linked blocks: send independent blocks")
    return header


def _check_block(data: bytes, block: Block) -> None:
    if block.word == _AS_IT_IS and data[block.end : block.end + 4] != _END:
        raise KafkaError(ErrorCode.INVALID_RECORD, "an empty LZ4 block, at which Java's consumer stops reading")


def _check_end(data: bytes, end: int) -> None:
    if end < len(data):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{len(data) - end} bytes after the LZ4 frame: send one frame")


def bound_bytes(data: bytes) -> int:
    """The largest possible size of the content of these frames, computed from their block lengths only. Raises
    KafkaError."""
    bound = at = 0
    while at < len(data):
        for block in blocks(data, header_at(data, at)):
            bound += block.bound_bytes
            at = block.end
    return bound


def largest_part_bytes(data: bytes) -> int:
    """The most bytes that `stored_pieces` decompresses at once. This reads only headers. Raises KafkaError."""
    largest = at = 0
    while at < len(data):
        header = header_at(data, at)
        if header.is_linked:
            return max(largest, bound_bytes(data[at:]))
        for block in blocks(data, header):
            largest = max(largest, block.bound_bytes)
            at = block.end
    return largest


class Content:
    """Decompresses the blocks of a frame, and checks them against its header and checksums."""

    def __init__(self, header: Header, size_bytes: int | None, alone: bytes) -> None:
        self._size_bytes = size_bytes
        self._alone = alone
        """The header for a frame with only one of the blocks."""
        self._sums_blocks = bool(header.flags & _BLOCK_CHECKSUM)
        self._output = bytearray()
        """The output buffer. It is replaced for a larger block."""
        self._summing = None
        if header.flags & _CONTENT_CHECKSUM:
            import cramjam

            # the library computes this checksum only while it compresses
            self._summing = cramjam.lz4.Compressor(level=1, content_checksum=True, block_linked=False)

    def plain(self, data: bytes, block: Block) -> bytes:
        """Decompress a block. Raises KafkaError."""
        import cramjam

        if block.word & _AS_IT_IS and not self._sums_blocks:
            plain = data[block.at + 4 : block.end]
        else:
            if len(self._output) < block.bound_bytes:
                self._output = bytearray(block.bound_bytes)
            try:
                if self._sums_blocks:
                    frame = b"".join((self._alone, data[block.at : block.end], _END))
                    size = cramjam.lz4.decompress_into(frame, self._output)
                else:
                    size = cramjam.lz4.decompress_block_into(data[block.at + 4 : block.end], self._output)
            except cramjam.DecompressionError as error:
                raise corrupt("lz4", error) from error
            plain = bytes(memoryview(self._output)[:size])
        if self._summing is not None:
            self._summing.compress(plain)
            self._summing.flush()
        return plain

    def check(self, size_bytes: int, checksum: bytes) -> None:
        """Check the frame after its last block. Raises KafkaError."""
        if self._size_bytes not in (None, size_bytes):
            raise corrupt("lz4", f"the content has {size_bytes} bytes, but {self._size_bytes} according to its header")
        if self._summing is not None and bytes(self._summing.finish())[-4:] != checksum:
            raise corrupt("lz4", "wrong checksum of the content")


def checked(data: bytes, at: int, header: Header) -> Content:
    """Check the header of the frame at a position against its checksum, and return its Content. Raises KafkaError."""
    if data[header.first - 1] != _header_checksum(data[at + 4 : header.first - 1]):
        raise corrupt("lz4", "wrong checksum of the header")
    size_bytes = None
    if header.flags & _CONTENT_SIZE:
        (size_bytes,) = _CONTENT_BYTES.unpack_from(data, at + 6)
    short = bytes((_VERSION | _INDEPENDENT | header.flags & _BLOCK_CHECKSUM, data[at + 5]))
    return Content(header, size_bytes, MAGIC + short + bytes((_header_checksum(short),)))


def _header_checksum(descriptor: bytes) -> int:
    """The second byte of the XXH32 hash with seed 0, for less than 16 bytes."""
    value = _PRIME_5 + len(descriptor)
    at = 0
    while at + 4 <= len(descriptor):
        (word,) = _WORD.unpack_from(descriptor, at)
        value = _rotated(value + word * _PRIME_3 & _MASK, 17) * _PRIME_4 & _MASK
        at += 4
    for byte in descriptor[at:]:
        value = _rotated(value + byte * _PRIME_5 & _MASK, 11) * _PRIME_1 & _MASK
    value = (value ^ value >> 15) * _PRIME_2 & _MASK
    value = (value ^ value >> 13) * _PRIME_3 & _MASK
    return (value ^ value >> 16) >> 8 & 0xFF


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK
