"""Draws ids of topics, ACLs and tokens."""

from __future__ import annotations

from random import Random


def random_uuid(random: Random) -> bytes:
    """A version 4 UUID whose text does not begin with a dash, like Kafka's: a tool would mistake such an argument for
    an option."""
    while True:
        raw = bytearray(random.randbytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        if raw[0] >> 2 != 0b111110:
            return bytes(raw)
