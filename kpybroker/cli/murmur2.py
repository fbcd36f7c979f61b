"""Computes the partition of a key with MurmurHash2 in the same way as Kafka's default partitioner.

Source: Austin Appleby's MurmurHash2 (public domain) with Kafka's seed. Keys are hashed as bytes. The partition is
computed from the hash without its sign bit.
"""

from __future__ import annotations

from struct import iter_unpack

SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash, unsigned."""
    size = len(data)
    whole = size & ~3
    state = SEED ^ size
    for (word,) in iter_unpack("<I", data[:whole]):
        word = word * MULTIPLIER & _MASK
        word ^= word >> 24
        state = (state * MULTIPLIER & _MASK) ^ (word * MULTIPLIER & _MASK)
    if size > whole:
        state = (state ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER & _MASK
    state = (state ^ state >> 13) * MULTIPLIER & _MASK
    return state ^ state >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition of a keyed record in a topic of `partition_count` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
