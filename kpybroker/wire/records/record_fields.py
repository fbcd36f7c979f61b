"""The fields of a record in a batch: numbers, lengths and headers."""

from __future__ import annotations

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.record_layouts import AFTER_LENGTH, AFTER_NAME, MISFIT

INT_BITS = 35
"""Five bytes, the size of a varint of 32 bits: Java's consumer refuses longer ones."""
LONG_BITS = 70
"""Ten bytes, the size of a varint of 64 bits: for timestamp deltas only."""
Piece = bytes | memoryview


def misfit(index: int) -> KafkaError:
    """The error for a record whose fields do not fill it."""
    return KafkaError(ErrorCode.INVALID_RECORD, f"record {index} does not have the length of its fields")


def varint(plain: Piece, at: int, bits: int = INT_BITS) -> tuple[int, int]:
    """A varint, still zigzag, and the position after it. Raises IndexError, KafkaError."""
    value = 0
    for shift in range(0, bits, 7):
        byte = plain[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise KafkaError(ErrorCode.INVALID_RECORD, "varint is too long")


def record_size(plain: Piece, at: int) -> tuple[int, int]:
    """A record's length and the position after it. If the length is incomplete, it counts as larger than the remaining
    bytes."""
    try:
        return varint(plain, at)
    except IndexError:
        return len(plain) + 1 << 1, at


def whole_headers(plain: Piece, at: int, most: int) -> tuple[int, int]:
    """How many of the next headers, at most `most`, are complete and valid, and where they end."""
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
    """The position after a length of more than one byte and its bytes. Raises IndexError, KafkaError."""
    size, at = varint(plain, at)
    if size & 1:
        return at if size == 1 and may_be_absent else MISFIT
    return at + (size >> 1)
