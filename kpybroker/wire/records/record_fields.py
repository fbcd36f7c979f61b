"""Parses the fields of a record in a batch: numbers, lengths and headers."""

from __future__ import annotations

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.record_layouts import AFTER_LENGTH, AFTER_NAME, MISFIT

INT_BITS = 35
"""The size of a varint of 32 bits, five bytes. Java's consumer refuses longer varints."""
LONG_BITS = 70
"""The size of a varint of 64 bits, ten bytes. Only timestamp deltas may be that large."""
Piece = bytes | memoryview


def misfit(index: int) -> KafkaError:
    """The error for a record with a length that does not match its fields."""
    return KafkaError(ErrorCode.INVALID_RECORD, f"the length of record {index} does not match its fields")


def varint(plain: Piece, at: int, bits: int = INT_BITS) -> tuple[int, int]:
    """A varint, as a zigzag number, and the position after it. Raises IndexError, KafkaError."""
    value = 0
    for shift in range(0, bits, 7):
        byte = plain[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise KafkaError(ErrorCode.INVALID_RECORD, "a varint is too long")


def record_size(plain: Piece, at: int) -> tuple[int, int]:
    """A record's length, and the position after it. If the length is incomplete, a value larger than the remaining
    bytes is returned."""
    try:
        return varint(plain, at)
    except IndexError:
        return len(plain) + 1 << 1, at


def whole_headers(plain: Piece, at: int, most: int) -> tuple[int, int]:
    """The number of the next headers, at most `most`, that are complete and valid, and the position after them."""
    total = len(plain)
    number = begin = 0
    try:
        for number in range(most):
            begin = at
            name = plain[at]
            at = at + AFTER_NAME[name] if name < 0x80 else after_length(plain, at, may_be_absent=False)
            value = plain[at]
            at = at + AFTER_LENGTH[value] if value < 0x80 else after_length(plain, at)
            if at > total:
                return number, begin
    except (IndexError, KafkaError):
        return number, begin
    return most, at


def after_length(plain: Piece, at: int, *, may_be_absent: bool = True) -> int:
    """The position after a field with a length of more than one byte. Raises IndexError, KafkaError."""
    size, at = varint(plain, at)
    if size & 1:
        return at if size == 1 and may_be_absent else MISFIT
    return at + (size >> 1)
