"""Batches that no client writes: they have a valid CRC, but their records contradict the header."""

import struct
from dataclasses import dataclass

import cramjam

from kpybroker.wire.records.batch import HEADER_BYTES, Batch, Record, encode_batch
from kpybroker.wire.records.checksum import crc32c
from kpybroker.wire.records.compression import Codec, compress

NOW_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Crafted:
    """Changes to the header of a valid batch, and the bytes after it."""

    body: bytes
    count: int = 2
    max_timestamp: int = NOW_MS

    def batch(self, codec: int, *, packed: bytes | None = None) -> bytes:
        """The batch with `body` compressed; or with `packed` instead."""
        content = bytearray(encode_batch([(b"k", b"v")], timestamp_ms=NOW_MS, codec=Codec.NONE)[:HEADER_BYTES])
        content += compress(codec, self.body) if packed is None else packed
        struct.pack_into(">i", content, 8, len(content) - 12)
        struct.pack_into(">hi", content, 21, codec, self.count - 1)
        struct.pack_into(">q", content, 35, self.max_timestamp)
        struct.pack_into(">i", content, 57, self.count)
        struct.pack_into(">I", content, 17, crc32c(memoryview(content)[21:]))
        return bytes(content)


def records() -> bytes:
    """Two valid records of nine bytes each."""
    both = [Record(0, NOW_MS, b"k", b"v"), Record(0, NOW_MS, b"k", b"w")]
    return bytes(Batch(memoryview(encode_batch(both))).view[HEADER_BYTES:])


def linked_lz4() -> bytes:
    """`records` in an LZ4 frame with linked blocks, the default of LZ4's own libraries."""
    return bytes(cramjam.lz4.compress(records()))


def crafted() -> dict[str, Crafted]:
    """The batches, by their defect."""
    body = records()
    first, second = body[:9], body[9:]
    return {
        "nothing is wrong": Crafted(body),
        "noise": Crafted(bytes(range(200, 250))),
        "zeros": Crafted(bytes(50)),
        "one record too few": Crafted(first),
        "one record too many": Crafted(body + second),
        "no records": Crafted(b"", count=0),
        "two thousand million records": Crafted(bytes(9), count=(1 << 31) - 1),
        "a trailing byte": Crafted(body + b"\0"),
        "a record too short": Crafted(first + b"\x0e" + second[1:]),
        "a record too long": Crafted(first + b"\x12" + second[1:]),
        "a negative length": Crafted(first + b"\x0f" + second[1:]),
        "a key too long": Crafted(first + second[:4] + b"\x40" + second[5:]),
        "a value too long": Crafted(first + second[:6] + b"\x40" + second[7:]),
        "a key of length -2": Crafted(first + second[:4] + b"\x03" + second[5:]),
        "a header that is not there": Crafted(body[:-1] + b"\x02"),
        "headers of a negative number": Crafted(body[:-1] + b"\x01"),
        "a header name that is no UTF-8": Crafted(first + b"\x16" + second[1:-1] + b"\x02\x02\xff\x01"),
        "the same offset twice": Crafted(first + first),
        "offsets with a gap": Crafted(first + second[:3] + b"\x04" + second[4:]),
        "a length of six bytes": Crafted(first + b"\x90\x80\x80\x80\x80\x00" + second[1:]),
        "a newest timestamp that is too late": Crafted(body, max_timestamp=NOW_MS + 5000),
    }
