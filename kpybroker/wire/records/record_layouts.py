"""Tables for scanning records: the size of a field from its length, and the offset deltas of a batch.

Both are zigzag varints. The tables cover the shortest varints, and mark all others as misfits.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

INDEXES = 1 << 20
"""The number of records in a batch for which there is a layout, which is limited by offset deltas of three bytes."""
MISFIT = 1 << 40
"""A distance that leads beyond the end of any batch."""
_RUN = 64
_TWO_BYTES, _THREE_BYTES = _RUN, _RUN << 7
"""The first offset deltas of two and three bytes."""


class Layout(NamedTuple):
    """The layout of records whose offset deltas have the same size."""

    unpack: Callable[[Any, int], tuple[Any, ...]]
    """Unpacks the first byte of the offset delta, its other bytes, and the first byte of the key's length. Raises
    struct.error at the end of the bytes."""
    width: int
    """The size of the offset delta, after which the key's length begins."""
    after_key: list[int]
    """AFTER_LENGTH for the key's length, but the distance is counted from the offset delta."""


def _after(byte: int) -> int:
    if byte & 1:
        return 1 if byte == 1 else MISFIT
    return 1 + (byte >> 1) if byte < 0x80 else 2 + (byte - 0x80 >> 1)


def _layout(width: int, rest: str, *, needs_keys: bool) -> Layout:
    reach = AFTER_NAME if needs_keys else AFTER_LENGTH
    return Layout(Struct(f">B{rest}B").unpack_from, width, [width + after for after in reach])


AFTER_LENGTH = [_after(byte) for byte in range(256)]
"""The distance from the first byte of a length to the end of its field, for each value of that byte. From 0x80 on, the
length has a second byte. If this is the last one, the distance grows by 64 times its value."""
AFTER_NAME = [MISFIT if byte == 1 else after for byte, after in enumerate(AFTER_LENGTH)]
"""Like AFTER_LENGTH, for a field that must not be absent."""
_LAYOUTS = [
    [_layout(width, rest, needs_keys=needs_keys) for width, rest in ((1, "0s"), (2, "B"), (3, "H"))]
    for needs_keys in (False, True)
]
_LAST = range(0, 2 * _RUN, 2)
_MORE = range(0x80, 0x80 + 2 * _RUN, 2)


def layout_at(index: int, last: int, needs_keys: bool) -> tuple[Layout, range, int | bytes]:
    """The layout of record `index` of a batch and of the following records, up to `last`, whose offset deltas differ
    only in the first byte. Also returns these first bytes, and the bytes that the deltas have in common. `index` is
    less than INDEXES."""
    at = index % _RUN
    until = at + last - index
    if index < _TWO_BYTES:
        return _LAYOUTS[needs_keys][0], _LAST[at:until], b""
    if index < _THREE_BYTES:
        return _LAYOUTS[needs_keys][1], _MORE[at:until], index >> 6
    return _LAYOUTS[needs_keys][2], _MORE[at:until], (index >> 6 & 0x7F | 0x80) << 8 | index >> 13
