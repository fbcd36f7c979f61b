"""Recognizes messages of the formats 0 and 1, which Apache Kafka wrote before 0.11. It still reads them (KIP-724), and
kpybroker does not.

Layout (big-endian): offset int64, length int32 (of the bytes after it), crc uint32 (CRC-32 of the bytes after it),
magic int8, and the rest. A compressed message contains others.
"""

from __future__ import annotations

import struct
from zlib import crc32

from kpybroker.world import Buffer

PREFIX = struct.Struct(">qiIb")
OLD_FORMATS = (0, 1)
_LENGTH_FROM, _CRC_FROM = 12, 16


def size_of(data: Buffer) -> int:
    """The size in bytes of the message that begins so, if its magic is that of an old format; 0 if it is not."""
    if len(data) < PREFIX.size:
        return 0
    _, length, _, magic = PREFIX.unpack_from(data)
    size: int = _LENGTH_FROM + length
    return size if magic in OLD_FORMATS and size >= PREFIX.size else 0


def old_format(data: Buffer) -> int | None:
    """The format of the message with which the bytes begin; None unless it is a whole one of an old format."""
    size = size_of(data)
    if not 0 < size <= len(data):
        return None
    _, _, crc, magic = PREFIX.unpack_from(data)
    return int(magic) if crc32(memoryview(data)[_CRC_FROM:size]) == crc else None
