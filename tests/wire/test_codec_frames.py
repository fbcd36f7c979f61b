"""Compressed bytes from clients are decompressed piece by piece, and only frames that Java's consumer reads completely
are accepted."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable

import cramjam
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records import compression
from kpybroker.wire.records.compression import (
    Codec,
    clients_pieces,
    compress,
    decompress,
    pieces,
    stored_pieces,
    whole_bytes,
)
from kpybroker.wire.records.decompressed import IN_PLACE_BYTES, PIECE_BYTES, READ_BYTES, Part, at_once

LIMIT = 1 << 24
TEXT = b"the same again and again, " * 5000
LZ4_HEADER = bytes.fromhex("04224d18604082")
"""A frame header for independent blocks of at most 64 KB, without checksums."""
LZ4_LARGE_HEADER = bytes.fromhex("04224d18607073")
"""Like LZ4_HEADER, with blocks of at most 4 MB."""
END = bytes(4)
XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
MANY = 20_000
some = settings(max_examples=60, deadline=None)


def as_client(codec: Codec, packed: bytes, limit_bytes: int = LIMIT) -> bytes:
    """The bytes that the broker reads from a client's compressed bytes. Raises KafkaError."""
    return b"".join(at_once(clients_pieces(codec, packed, limit_bytes)))


def as_stored(codec: Codec, packed: bytes, limit_bytes: int = LIMIT) -> bytes:
    return b"".join(pieces(codec, packed, limit_bytes))


def plain_block(data: bytes) -> bytes:
    return struct.pack("<I", len(data) | 1 << 31) + data


def packed_block(data: bytes) -> bytes:
    packed = bytes(cramjam.lz4.compress_block(data, store_size=False))
    return struct.pack("<I", len(packed)) + packed


def zstd_block(data: bytes, *, last: bool = False) -> bytes:
    return (len(data) << 3 | last).to_bytes(3, "little") + data


def zstd_frame(*blocks: bytes) -> bytes:
    return b"\x28\xb5\x2f\xfd\0\x58" + b"".join(blocks)


def refusal_of(work: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as refusal:
        work()
    return ErrorCode(refusal.value.code)


CHECKED = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
WHOLE = compress(Codec.ZSTD, TEXT)
ENDS = zstd_frame(zstd_block(b"ab"), zstd_block(b"cd", last=True))
CUT = {
    "not ended": zstd_frame(zstd_block(b"ab"), zstd_block(b"cd")),
    "truncated in its checksum": CHECKED[:-2],
    "no checksum": CHECKED[:-4],
    "a second frame without an end": WHOLE + zstd_frame(zstd_block(b"ab")),
    "the beginning of a second frame": WHOLE + WHOLE[:5],
    "a truncated skippable frame": WHOLE + struct.pack("<II", 0x184D2A5F, 4) + b"abc",
    "half a block header": ENDS[:-4],
}


@pytest.mark.parametrize("what", CUT)
def test_an_incomplete_zstd_frame_of_a_client_is_refused(what: str) -> None:
    """The decompressor treats the end of its input as the end of the frame, but Java's consumer does not."""
    assert refusal_of(lambda: as_client(Codec.ZSTD, CUT[what])) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("cut", range(len(ENDS)))
def test_no_prefix_of_a_zstd_frame_is_valid(cut: int) -> None:
    assert as_client(Codec.ZSTD, ENDS) == b"abcd"
    if cut:
        assert refusal_of(lambda: as_client(Codec.ZSTD, ENDS[:cut])) == ErrorCode.CORRUPT_MESSAGE


def test_stored_frames_are_read_as_far_as_possible() -> None:
    assert as_stored(Codec.ZSTD, CUT["not ended"]) == b"abcd"
    linked = bytes(cramjam.lz4.compress(TEXT))
    assert as_stored(Codec.LZ4, linked) == TEXT
    assert as_stored(Codec.LZ4, compress(Codec.LZ4, TEXT) + linked) == TEXT * 2
    assert as_stored(Codec.LZ4, LZ4_HEADER + plain_block(b"") + plain_block(b"abc") + END) == b"abc"


@pytest.mark.parametrize("before", [b"", plain_block(b"x"), packed_block(TEXT) * 100], ids=["first", "second", "late"])
def test_an_empty_lz4_block_is_refused_unless_it_is_the_last(before: bytes) -> None:
    """Java's consumer treats an empty block as the end of the frame."""
    header = LZ4_LARGE_HEADER if len(before) > 1000 else LZ4_HEADER
    bad = header + before + plain_block(b"") + plain_block(b"abc") + END
    assert refusal_of(lambda: as_client(Codec.LZ4, bad)) == ErrorCode.INVALID_RECORD
    good = header + before + plain_block(b"") + END
    assert len(as_client(Codec.LZ4, good)) == len(as_client(Codec.LZ4, header + before + END))


def lz4_frame(plain: bytes, size: int, *, blocks: bool, content: bool, says_size: bool) -> bytes:
    """A frame of small blocks, with the requested checksums."""
    flags = 0x60 | blocks << 4 | says_size << 3 | content << 2
    own = cramjam.lz4.Compressor(content_checksum=True, block_linked=False)
    own.compress(plain)
    descriptor = bytes((flags, 0x40)) + (struct.pack("<Q", len(plain)) if says_size else b"")
    out = b"\x04\x22\x4d\x18" + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF])
    for at in range(0, len(plain), size):
        block = (packed_block if at // size % 2 else plain_block)(plain[at : at + size])
        out += block + (struct.pack("<I", xxh32(block[4:])) if blocks else b"")
    return out + END + (bytes(own.finish())[-4:] if content else b"")


def xxh32(data: bytes) -> int:
    """The XXH32 checksum, taken from the end of a frame that the library compresses."""
    own = cramjam.lz4.Compressor(content_checksum=True, block_linked=False)
    own.compress(data)
    return int(struct.unpack("<I", bytes(own.finish())[-4:])[0])


@given(
    st.binary(min_size=200, max_size=600), st.booleans(), st.booleans(), st.booleans(), st.none() | st.integers(4, 4000)
)
@some
def test_lz4_block_by_block_is_what_the_library_reads(
    plain: bytes, blocks: bool, content: bool, says_size: bool, flipped: int | None
) -> None:
    """If a byte in any field is changed, both refuse the frame, or both read the same bytes."""
    frame = bytearray(lz4_frame(plain * 3, 9, blocks=blocks, content=content, says_size=says_size))
    if flipped is not None:
        frame[flipped % len(frame)] ^= 1 << flipped % 7
    try:
        expected = bytes(decompress(Codec.LZ4, bytes(frame), LIMIT))
    except KafkaError:
        refusal_of(lambda: as_client(Codec.LZ4, bytes(frame)))
        refusal_of(lambda: as_stored(Codec.LZ4, bytes(frame)))
        return
    assert as_stored(Codec.LZ4, bytes(frame)) == expected
    if flipped is None:
        assert as_client(Codec.LZ4, bytes(frame)) == expected == plain * 3


def bombs() -> dict[str, tuple[Codec, bytes]]:
    large = bytes(3 << 20)
    raw = bytes(cramjam.snappy.compress_raw(large))
    below = bytes(cramjam.snappy.compress_raw(bytes(900_000)))
    return {
        "gzip": (Codec.GZIP, compress(Codec.GZIP, large)),
        "snappy": (Codec.SNAPPY, compress(Codec.SNAPPY, large)),
        "snappy in one block": (Codec.SNAPPY, XERIAL + struct.pack(">i", len(raw)) + raw),
        "snappy in one block below a megabyte": (Codec.SNAPPY, XERIAL + struct.pack(">i", len(below)) + below),
        "raw snappy": (Codec.SNAPPY, raw),
        "LZ4": (Codec.LZ4, compress(Codec.LZ4, large)),
        "LZ4 in one block": (Codec.LZ4, LZ4_LARGE_HEADER + packed_block(large) + END),
        "LZ4 of linked blocks": (Codec.LZ4, bytes(cramjam.lz4.compress(large))),
        "zstd": (Codec.ZSTD, compress(Codec.ZSTD, large)),
    }


@pytest.mark.parametrize("what", bombs())
def test_no_piece_is_larger_than_the_limit(what: str) -> None:
    codec, packed = bombs()[what]
    read = stored_pieces if "linked" in what else clients_pieces
    sizes, loads = [], 0
    for piece in read(codec, packed, LIMIT):
        if isinstance(piece, Part):
            sizes.append(len(piece))
        else:
            loads += 1
            piece()
    assert max(sizes) <= PIECE_BYTES
    assert sum(sizes) == (900_000 if "below" in what else 3 << 20)
    assert b"".join(pieces(codec, packed, LIMIT)) == bytes(sum(sizes))
    assert (whole_bytes(codec, packed) > IN_PLACE_BYTES) == loads
    assert loads == (what in ("snappy in one block", "raw snappy", "LZ4 in one block", "LZ4 of linked blocks"))
    assert refusal_of(lambda: list(at_once(read(codec, packed, sum(sizes) - 1)))) == ErrorCode.MESSAGE_TOO_LARGE


def tiny() -> dict[str, tuple[Codec, bytes]]:
    """Data that consists of MANY nearly empty blocks or members."""
    letter = bytes(cramjam.snappy.compress_raw(b"x"))
    return {
        "gzip members": (Codec.GZIP, gzip.compress(b"") * MANY),
        "snappy blocks": (Codec.SNAPPY, XERIAL + (struct.pack(">i", len(letter)) + letter) * MANY),
        "LZ4 blocks": (Codec.LZ4, LZ4_HEADER + plain_block(b"x") * MANY + END),
        "empty LZ4 blocks": (Codec.LZ4, LZ4_HEADER + b"\1\0\0\0\0" * MANY + END),
        "zstd blocks": (Codec.ZSTD, zstd_frame(zstd_block(b"x") * MANY, zstd_block(b"", last=True))),
        "zstd frames": (Codec.ZSTD, compress(Codec.ZSTD, b"") * MANY),
        "zstd frames to skip": (Codec.ZSTD, struct.pack("<II", 0x184D2A50, 0) * MANY),
    }


@pytest.mark.parametrize("what", tiny())
def test_the_loop_gets_turns_between_any_number_of_small_parts(what: str) -> None:
    """The scan of records yields to the event loop once for each piece, also for an empty piece."""
    codec, packed = tiny()[what]
    found = list(clients_pieces(codec, packed, LIMIT))
    assert len(found) >= MANY // 2500
    assert not any(callable(each) for each in found)


def test_bytes_after_a_gzip_member_are_not_copied_for_each_member(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[int] = []
    real = zlib.decompressobj

    class Counted:
        def __init__(self, bits: int) -> None:
            self._member = real(bits)

        def decompress(self, data: bytes, most: int) -> bytes:
            handed.append(len(data))
            return self._member.decompress(data, most)

        @property
        def eof(self) -> bool:
            return self._member.eof

        @property
        def unused_data(self) -> bytes:
            return self._member.unused_data

        @property
        def unconsumed_tail(self) -> bytes:
            return self._member.unconsumed_tail

    monkeypatch.setattr(compression.zlib, "decompressobj", Counted)
    packed = gzip.compress(b"") * 3000
    assert as_client(Codec.GZIP, packed) == b""
    assert sum(handed) <= 1100 * 3000 + READ_BYTES, "at most a kilobyte for a member"
    handed.clear()
    large = gzip.compress(bytes(8 << 20))
    assert len(as_client(Codec.GZIP, large)) == 8 << 20
    assert sum(handed) <= len(large) * (1 + READ_BYTES // 1000)


def test_snappy_allocates_nothing_for_impossible_sizes() -> None:
    claims = b"\x80\x80\x80\x32" + b"\0" * 20
    assert refusal_of(lambda: as_client(Codec.SNAPPY, claims)) == ErrorCode.CORRUPT_MESSAGE
