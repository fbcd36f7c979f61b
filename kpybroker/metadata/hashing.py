"""Computes the length and hash of a string as Java does. The hash determines the coordinator's
partition for a group or a transactional id."""

from __future__ import annotations


def java_hash(text: str) -> int:
    """The hash as a signed 32-bit number, over UTF-16 code units (an emoji is two of them)."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(encoded), 2):
        value = (31 * value + (encoded[position] << 8 | encoded[position + 1])) & 0xFFFF_FFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_of(group_id: str, partitions: int) -> int:
    """The partition of a group or a transactional id. For a hash of -2**31, which has no absolute value in Java, Kafka
    uses 0."""
    value = java_hash(group_id)
    return 0 if value == -(1 << 31) else abs(value) % partitions


def java_length(text: str) -> int:
    """The length of a string in Java: the number of UTF-16 code units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-be", "surrogatepass")) // 2
