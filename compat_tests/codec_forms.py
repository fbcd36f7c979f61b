"""Unusual compressed streams of the same valid records, which no client writes: unterminated, with wrong fields, or
with trailing bytes."""

import gzip
import struct
import zlib

import cramjam
import zstandard

from compat_tests.crafted import records
from kpybroker.wire.records.compression import Codec, compress

LZ4_HEADER = bytes.fromhex("04224d18604082")
"""A frame header: independent blocks of at most 64 KB, without checksums."""
LZ4_END = bytes(4)
LZ4_NOTHING = b"\0\0\0\x80"
"""An empty uncompressed block."""
LZ4_EMPTY = b"\1\0\0\0\0"
"""A compressed block of one byte without content."""
XERIAL = b"\x82SNAPPY\0"
ZSTD_SKIPPABLE = struct.pack("<II", 0x184D2A50, 4) + b"skip"


def _block(data: bytes) -> bytes:
    return struct.pack("<I", len(data) | 1 << 31) + data


def _xerial(*blocks: bytes, versions: tuple[int, int] = (1, 1)) -> bytes:
    return XERIAL + struct.pack(">ii", *versions) + b"".join(struct.pack(">i", len(each)) + each for each in blocks)


def _changed(data: bytes, at: int) -> bytes:
    content = bytearray(data)
    content[at] ^= 1
    return bytes(content)


def lz4_forms() -> dict[str, bytes]:
    """LZ4 frames."""
    plain, half = records(), 9
    first, second = _block(plain[:half]), _block(plain[half:])
    checked = bytes(cramjam.lz4.compress(plain))
    return {
        "two blocks": LZ4_HEADER + first + second + LZ4_END,
        "a block of no bytes first": LZ4_HEADER + LZ4_NOTHING + first + second + LZ4_END,
        "a block of no bytes between": LZ4_HEADER + first + LZ4_NOTHING + second + LZ4_END,
        "a block of no bytes last": LZ4_HEADER + first + second + LZ4_NOTHING,
        "a block of no bytes, then the end": LZ4_HEADER + first + second + LZ4_NOTHING + LZ4_END,
        "an empty compressed block between": LZ4_HEADER + first + LZ4_EMPTY + second + LZ4_END,
        "an empty compressed block last": LZ4_HEADER + first + second + LZ4_EMPTY + LZ4_END,
        "no end": LZ4_HEADER + first + second,
        "a block longer than the frame": LZ4_HEADER + _block(plain)[:-1],
        "a block larger than the header allows": LZ4_HEADER + _block(plain + bytes(1 << 16)) + LZ4_END,
        "a wrong checksum of the header": _changed(LZ4_HEADER, 6) + first + second + LZ4_END,
        "a wrong checksum of a block": _changed(_own_lz4(plain, False), -5),
        "a wrong checksum of the content": _changed(_own_lz4(plain, True), -1),
        "linked blocks": checked,
    }


def _own_lz4(plain: bytes, content_checksum: bool) -> bytes:
    frame = cramjam.lz4.Compressor(content_checksum=content_checksum, block_linked=False)
    frame.compress(plain)
    return bytes(frame.finish())


def zstd_forms() -> dict[str, bytes]:
    """Zstandard frames."""
    plain, half = records(), 9
    whole = compress(Codec.ZSTD, plain)
    checked = zstandard.ZstdCompressor(write_checksum=True).compress(plain)
    packer = zstandard.ZstdCompressor().compressobj()
    open_ended = packer.compress(plain) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return {
        "two frames": compress(Codec.ZSTD, plain[:half]) + compress(Codec.ZSTD, plain[half:]),
        "a frame that is not ended": open_ended,
        "a second frame that is not ended": compress(Codec.ZSTD, plain[:half]) + _open_ended(plain[half:]),
        "cut in its checksum": checked[:-2],
        "a wrong checksum": _changed(checked, -1),
        "a wrong content size": _changed(whole, 5),
        "a reserved bit": whole[:4] + bytes([whole[4] | 8]) + whole[5:],
        "no content size": zstandard.ZstdCompressor(write_content_size=False).compress(plain),
        "an empty frame first": compress(Codec.ZSTD, b"") + whole,
        "an empty frame last": whole + compress(Codec.ZSTD, b""),
        "a skippable frame first": ZSTD_SKIPPABLE + whole,
        "a skippable frame last": whole + ZSTD_SKIPPABLE,
        "a skippable frame that is cut": whole + ZSTD_SKIPPABLE[:-1],
        "bytes behind": whole + b"more",
        "a trailing byte": whole + b"x",
        "a dictionary": whole[:4] + bytes([whole[4] | 1]) + b"\7" + whole[5:],
    }


def _open_ended(plain: bytes) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(plain) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


def snappy_forms() -> dict[str, bytes]:
    """Raw snappy, and snappy in Xerial framing."""
    plain, half = records(), 9
    raw = bytes(cramjam.snappy.compress_raw(plain))
    first, second = bytes(cramjam.snappy.compress_raw(plain[:half])), bytes(cramjam.snappy.compress_raw(plain[half:]))
    return {
        "raw": raw,
        "raw, a trailing byte": raw + b"\0",
        "two blocks": _xerial(first, second),
        "version 0": _xerial(raw, versions=(0, 0)),
        "version 2 that needs 2": _xerial(raw, versions=(2, 2)),
        "an empty block between": _xerial(first, b"\0", second),
        "an empty block last": _xerial(first, second, b"\0"),
        "a block of no bytes between": _xerial(first, b"", second),
        "a block of no bytes last": _xerial(first, second, b""),
        "a block of a negative length": _xerial(first, second) + b"\xff\xff\xff\xff",
        "a block that is cut": _xerial(first, second)[:-1],
        "half a block length behind": _xerial(first, second) + b"\0\0",
        "a second header between": _xerial(first) + _xerial(second),
        "a block that claims more than it has": _xerial(b"\x7f" + raw[1:]),
        "a block that claims 100 MB": _xerial(b"\x80\x80\x80\x32" + raw[1:]),
    }


def gzip_forms() -> dict[str, bytes]:
    """gzip members."""
    plain, half = records(), 9
    whole = compress(Codec.GZIP, plain)
    return {
        "two members": compress(Codec.GZIP, plain[:half]) + compress(Codec.GZIP, plain[half:]),
        "an empty member first": gzip.compress(b"") + whole,
        "an empty member last": whole + gzip.compress(b""),
        "bytes behind": whole + b"garbage behind the last member",
        "zeros behind": whole + bytes(20),
        "a wrong checksum": _changed(whole, -8),
        "a wrong length": _changed(whole, -4),
        "cut in its trailer": whole[:-3],
        "not ended": whole[:10] + _deflated(plain),
        "a name in the header": whole[:3] + b"\x08" + whole[4:10] + b"name\0" + whole[10:],
    }


def _deflated(plain: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(plain) + packer.flush(zlib.Z_SYNC_FLUSH)


FORMS = {
    Codec.GZIP: gzip_forms,
    Codec.SNAPPY: snappy_forms,
    Codec.LZ4: lz4_forms,
    Codec.ZSTD: zstd_forms,
}
"""The function that creates the forms of each codec, by name."""
REFUSED = {
    Codec.GZIP: {"a wrong checksum", "a wrong length", "cut in its trailer", "not ended"},
    Codec.SNAPPY: {
        "raw, a trailing byte",
        "a block of no bytes between",
        "a block of no bytes last",
        "a block of a negative length",
        "a block that is cut",
        "a block that claims more than it has",
        "a block that claims 100 MB",
    },
    Codec.LZ4: {
        "no end",
        "a block longer than the frame",
        "a block larger than the header allows",
        "a wrong checksum of the header",
        "a wrong checksum of a block",
        "linked blocks",
    },
    Codec.ZSTD: {
        "a frame that is not ended",
        "cut in its checksum",
        "a wrong checksum",
        "a wrong content size",
        "a reserved bit",
        "bytes behind",
        "a trailing byte",
        "a dictionary",
    },
}
"""Forms that Apache Kafka 4.3.1 refuses with UNKNOWN_SERVER_ERROR."""
INVALID = {Codec.LZ4: {"a block of no bytes first", "a block of no bytes between"}}
"""Forms that Apache Kafka refuses with INVALID_RECORD: its reader stops at the defect, and finds too few records."""
READ_NO_FURTHER = {
    Codec.GZIP: {"bytes behind", "zeros behind"},
    Codec.SNAPPY: {"half a block length behind", "a second header between"},
    Codec.LZ4: {"a block of no bytes last", "a wrong checksum of the content"},
    Codec.ZSTD: {"a second frame that is not ended", "a skippable frame that is cut"},
}
"""Forms that Apache Kafka accepts: all records precede the defect, and its reader stops there. kpybroker reads to the
end, and refuses them."""
