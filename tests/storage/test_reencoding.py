"""Long batches are opened in slices, whatever they contain, and the size of their contents is limited."""

from __future__ import annotations

import struct
from dataclasses import replace

import cramjam
import pytest

from kpybroker.config import LogSettings
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.storage.log import reencoding as limits
from kpybroker.storage.log.admission import opening
from kpybroker.storage.log.slices import at_once
from kpybroker.wire.records.batch import HEADER_BYTES, Batch, Record, encode_batch, put_varint, with_body
from kpybroker.wire.records.compression import Codec, compress
from kpybroker.wire.records.decompressed import PIECE_BYTES
from tests.storage.workshop import batch_of

pytestmark = pytest.mark.slow

NOW = 1_700_000_000_000
HEADERS = 300_000
SETTINGS = LogSettings()


def with_headers(count: int) -> bytes:
    """One record with this many headers of two bytes each."""
    head, body, out = bytearray(b"\0\0\0\1\1"), bytearray(b"\0\1") * count, bytearray()
    put_varint(head, count)
    put_varint(out, len(head) + len(body))
    return bytes(out + head + body)


def in_one_block(plain: bytes) -> bytes:
    """Snappy with Xerial framing in a single block, which no client writes."""
    block = bytes(cramjam.snappy.compress_raw(plain))
    return b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_one_record_with_many_headers_takes_many_slices(codec: Codec) -> None:
    plain = with_headers(HEADERS)
    body = in_one_block(plain) if codec == Codec.SNAPPY else compress(codec, plain)
    steps = list(opening(with_body(batch_of([Record(0, NOW, b"k", b"v")]), codec, body, NOW), SETTINGS, NOW))
    assert len(steps) >= len(plain) // PIECE_BYTES
    assert not any(steps), "no step runs on a thread"


def test_a_large_lz4_frame_is_opened_on_the_loop_piece_by_piece() -> None:
    """There is no buffer for the whole frame, and no thread that holds the interpreter lock during the
    decompression."""
    batch = batch_of([Record(0, NOW, b"k", bytes(16 << 20))], codec=Codec.LZ4)
    steps = list(opening(batch, SETTINGS, NOW))
    assert len(steps) >= (16 << 20) // PIECE_BYTES
    assert not any(steps)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
@pytest.mark.parametrize("records", [1, 3])
def test_a_compressed_batch_has_no_more_headers_than_the_limit(
    monkeypatch: pytest.MonkeyPatch, codec: Codec, records: int
) -> None:
    monkeypatch.setattr(limits, "HEADERS_LIMIT", 90_000)
    for more in (0, 1):
        counts = [30_000] * records if records > 1 else [90_000]
        counts[-1] += more
        of = [Record(0, NOW, b"k", b"v", ((("", None),) * count)) for count in counts]
        content = bytes(encode_batch(of, codec=codec))
        if not more:
            assert at_once(opening(Batch(memoryview(bytearray(content))), SETTINGS, NOW)).record_count == records
            continue
        with pytest.raises(KafkaError) as refusal:
            at_once(opening(Batch(memoryview(bytearray(content))), SETTINGS, NOW))
        assert refusal.value.code == ErrorCode.MESSAGE_TOO_LARGE, "Java sends its records in two batches"
        plain = Batch(memoryview(encode_batch(of)))
        large = replace(SETTINGS, max_message_bytes=1 << 24)
        assert at_once(opening(plain, large, NOW)).record_count == records, "not compressed: its bytes are the limit"


def test_headers_of_every_size_in_a_record_larger_than_its_pieces() -> None:
    names = (("", None), ("n" * 70, b"v" * 9000), ("a", b""), ("b" * 9000, b"x" * 100_000), ("c", b"y" * 63))
    of = [Record(0, NOW, b"k", bytes(70_000), names * 30), Record(0, NOW, b"k", b"v", names)]
    plain = bytes(Batch(memoryview(encode_batch(of))).view[HEADER_BYTES:])
    good = batch_of(of)
    for codec in Codec:
        body = in_one_block(plain) if codec == Codec.SNAPPY else compress(codec, plain)
        settings = replace(SETTINGS, max_message_bytes=1 << 24)
        assert at_once(opening(with_body(good, codec, body, NOW), settings, NOW)).record_count == 2
