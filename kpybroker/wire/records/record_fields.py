"""Parses the fields of a record in a batch: numbers, lengths and headers.

Positions and lengths are 64-bit integers, which are not objects in the compiled build.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kpybroker.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from mypy_extensions import i64

_BITS: Final = 35
"""The size of a varint of 32 bits, five bytes. Java's consumer refuses longer varints."""
_LONG_BITS: Final = 70
"""The size of a varint of 64 bits, ten bytes. Only timestamp deltas may be that large."""


def misfit(index: int) -> KafkaError:
    """The error for a record with a length that does not match its fields."""
    return KafkaError(ErrorCode.INVALID_RECORD, f"the length of record {index} does not match its fields")


def varint(plain: bytes, at: i64) -> tuple[i64, i64]:
    """A varint of 32 bits, as a zigzag number, and the position after it. Raises IndexError, KafkaError."""
    value: i64 = 0
    shift: i64 = 0
    while shift < _BITS:
        byte: i64 = plain[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _too_long()


def long_varint(plain: bytes, at: int) -> tuple[int, int]:
    """The same for 64 bits."""
    value = 0
    for shift in range(0, _LONG_BITS, 7):
        byte = plain[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _too_long()


def _too_long() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, "a varint is too long")


def record_size(plain: bytes, at: i64) -> tuple[i64, i64]:
    """A record's length, and the position after it. If the length is incomplete, a value larger than the remaining
    bytes is returned."""
    try:
        return varint(plain, at)
    except IndexError:
        return len(plain) + 1 << 1, at


def after_value(plain: bytes, at: i64) -> i64:
    """The position after a value and its length, or one beyond the end of `plain` if the length is not valid. Raises
    IndexError, KafkaError."""
    size: i64 = plain[at]
    at += 1
    if size > 0x7F:
        more: i64 = plain[at]
        at += 1
        size = size & 0x7F | more << 7
        if more > 0x7F:
            size, at = varint(plain, at - 2)
    return at + (size >> 1) if not size & 1 or size == 1 else len(plain) + 1


def whole_headers(plain: bytes, at: i64, most: i64) -> tuple[i64, i64]:
    """The number of the next headers, at most `most`, that are complete and valid, and the position after them."""
    total: i64 = len(plain)
    number: i64 = 0
    begin = at
    try:
        while number < most:
            begin = at
            name: i64 = plain[at]
            at += 1
            if name > 0x7F:
                name, at = varint(plain, begin)
            at = after_value(plain, at + (name >> 1))
            if name & 1 or at > total:
                return number, begin
            number += 1
    except (IndexError, KafkaError):
        return number, begin
    return most, at
