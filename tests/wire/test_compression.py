"""Codecs: data survives a round trip in Kafka's framings, and no input decompresses to more than the limit."""

from __future__ import annotations

import contextlib
import gzip
import sys
import zlib
from types import FrameType
from typing import Any

import cramjam
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.compression import LZ4_DEFAULT_LEVEL, Codec, clients_pieces, compress, decompress
from kpybroker.wire.records.decompressed import READ_BYTES, at_once

codecs = st.sampled_from(Codec)
PACKED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
LIMIT = 1 << 20
BOMB = bytes(8 * LIMIT)
some = settings(max_examples=25, deadline=None)


@given(codecs, st.binary(max_size=500), st.integers(0, 400))
@some
def test_decompression_inverts_compression(codec: Codec, data: bytes, times: int) -> None:
    plain = data * times
    assert decompress(codec, compress(codec, plain), len(plain)) == plain


@pytest.mark.parametrize("codec", PACKED)
def test_output_above_the_limit_is_refused_before_it_is_allocated(codec: Codec) -> None:
    with pytest.raises(KafkaError) as refusal:
        decompress(codec, compress(codec, BOMB), LIMIT)
    assert refusal.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert len(decompress(codec, compress(codec, BOMB), len(BOMB))) == len(BOMB)


@given(st.sampled_from(PACKED), st.binary(max_size=300), st.data())
@some
def test_mutated_bytes_are_read_or_refused(codec: Codec, plain: bytes, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, plain))
    for _ in range(data.draw(st.integers(0, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    packed = packed[: data.draw(st.integers(0, len(packed)))]
    with contextlib.suppress(KafkaError):
        assert len(decompress(codec, packed, 10_000)) <= 10_000


def test_the_default_of_lz4_is_the_fast_compressor_as_in_kafka() -> None:
    plain = b"".join(b"%d," % (number * number) for number in range(5000))
    fast, default, high = (len(compress(Codec.LZ4, plain, level)) for level in (None, LZ4_DEFAULT_LEVEL, 10))
    assert fast == default
    assert high < default


def as_client(codec: Codec, packed: bytes, limit_bytes: int = LIMIT) -> bytes:
    """The bytes that the broker reads from a client's compressed bytes. Raises KafkaError."""
    return b"".join(at_once(clients_pieces(codec, packed, limit_bytes)))


TEXT = b"the same again and again, " * 5000
"""More than one LZ4 block and more than one snappy block."""


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))),
        (Codec.LZ4, bytes(cramjam.lz4.compress(TEXT))),
        (Codec.GZIP, gzip.compress(TEXT[:70_000]) + gzip.compress(TEXT[70_000:])),
        (Codec.ZSTD, zstandard.ZstdCompressor().compressobj().compress(b"") or zstandard.compress(TEXT)),
        (Codec.ZSTD, zstandard.compress(TEXT[:70_000]) + zstandard.compress(TEXT[70_000:])),
    ],
    ids=["raw snappy", "linked lz4 blocks", "gzip members", "zstd", "zstd frames"],
)
def test_other_framings_are_read(codec: Codec, packed: bytes) -> None:
    assert decompress(codec, packed, len(TEXT)) == TEXT


def test_java_can_read_what_is_written() -> None:
    assert compress(Codec.SNAPPY, TEXT)[:16].hex() == "82534e41505059000000000100000001"
    lz4 = compress(Codec.LZ4, TEXT)
    assert lz4[:4].hex() == "04224d18"
    assert lz4[4] & 0x20, "Java reads only independent blocks"
    assert zlib.decompress(compress(Codec.GZIP, TEXT), 31) == TEXT


def test_an_unknown_codec_is_refused() -> None:
    for function in (lambda: compress(5, b""), lambda: decompress(7, b"", 1)):
        with pytest.raises(KafkaError) as refusal:
            function()
        assert refusal.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (bytes(cramjam.lz4.compress(TEXT)), ErrorCode.UNKNOWN_SERVER_ERROR),
        (compress(Codec.LZ4, TEXT) * 2, ErrorCode.INVALID_RECORD),
        (compress(Codec.LZ4, TEXT) + b"x", ErrorCode.INVALID_RECORD),
        (compress(Codec.LZ4, TEXT)[:-1], ErrorCode.CORRUPT_MESSAGE),
        (b"", ErrorCode.CORRUPT_MESSAGE),
    ],
    ids=["linked blocks", "two frames", "a trailing byte", "cut off", "nothing"],
)
def test_lz4_that_java_cannot_read_is_refused(frame: bytes, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refusal:
        as_client(Codec.LZ4, frame)
    assert refusal.value.code == code


def test_one_lz4_frame_of_independent_blocks_is_accepted_with_any_flags() -> None:
    as_client(Codec.LZ4, compress(Codec.LZ4, TEXT))
    frame = cramjam.lz4.Compressor(content_checksum=True, block_linked=False)
    frame.compress(TEXT)
    as_client(Codec.LZ4, bytes(frame.finish()))


@pytest.mark.parametrize("level", [None, 9, 1, 12])
@pytest.mark.parametrize("size", [0, 1, READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, 5 * READ_BYTES])
def test_lz4_is_compressed_in_pieces(level: int | None, size: int) -> None:
    """The library holds the interpreter's lock while it compresses a piece. Other threads run between two pieces."""
    plain, pieces_made = bytes(range(256)) * (size // 256) + b"x" * (size % 256), 0

    def note(_frame: FrameType, event: str, argument: Any) -> None:
        nonlocal pieces_made
        pieces_made += event == "c_call" and argument.__name__ == "compress"

    sys.setprofile(note)
    try:
        packed = compress(Codec.LZ4, plain, level)
    finally:
        sys.setprofile(None)
    assert bytes(decompress(Codec.LZ4, packed, size)) == plain
    assert pieces_made == -(-size // READ_BYTES)
    whole = cramjam.lz4.Compressor(level=1 if level in (None, 9) else level, content_checksum=False, block_linked=False)
    whole.compress(plain)
    assert packed == bytes(whole.finish()), "the same frame as from one call"
