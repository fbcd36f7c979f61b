"""Messages of the formats 0 and 1, for logs that Apache Kafka wrote before 0.11."""

from __future__ import annotations

import struct
import zlib


def message(offset: int, magic: int, value: bytes = b"v") -> bytes:
    """A message of an old format, as Apache Kafka wrote it before 0.11."""
    timestamp = struct.pack(">q", 1000) if magic else b""
    body = struct.pack(">bb", magic, 0) + timestamp + struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body
