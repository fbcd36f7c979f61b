"""Tables for scanning records: the size of a field from its length, and the offset deltas of a batch.

Both are zigzag varints. The tables cover the shortest ones, and mark all others as misfits.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

INDEXES = 1 << 20
"""The number of records in a batch for which there is a layout: as many as three bytes can count."""
MISFIT = 1 << 40
"""A position beyond the end of anything."""
_RUN = 64
_TWO_BYTES, _THREE_BYTES = _RUN, _RUN << 7
"""The first offset deltas of two and three bytes."""


class Layout(NamedTuple):
    """The layout of records whose offset deltas have the same size."""

    unpack: Callable[[Any, int], tuple[Any, ...]]
    """From the offset delta on: its first byte, the rest of it, the first byte of the key's length. Raises struct.error
    at the end of the bytes."""
    width: int
    """The size of the offset delta, which the key's length follows."""
    after_key: list[int]
    """AFTER_LENGTH of the key's length, counted from the offset delta."""


def _after(byte: int) -> int:
    if byte & 1:
        return 1 if byte == 1 else MISFIT
    return 1 + (byte >> 1) if byte < 0x80 else 2 + (byte - 0x80 >> 1)


def _layout(width: int, rest: str, *, needs_keys: bool) -> Layout:
    reach = AFTER_NAME if needs_keys else AFTER_LENGTH
    return Layout(Struct(f">B{rest}B").unpack_from, width, [width + after for after in reach])


AFTER_LENGTH = [_after(byte) for byte in range(256)]
"""By the first byte of a length: the distance from it to the end of its bytes. From 0x80 on, a second byte follows; if
that is the last one, it adds 64 for each 1."""
AFTER_NAME = [MISFIT if byte == 1 else after for byte, after in enumerate(AFTER_LENGTH)]
"""The same for a field that must not be absent."""
_LAYOUTS = [
    [_layout(width, rest, needs_keys=needs_keys) for width, rest in ((1, "0s"), (2, "B"), (3, "H"))]
    for needs_keys in (False, True)
]
_LAST = range(0, 2 * _RUN, 2)
_MORE = range(0x80, 0x80 + 2 * _RUN, 2)


def layout_at(index: int, last: int, needs_keys: bool) -> tuple[Layout, range, int | bytes]:
    """The layout of the record `index` of a batch, and of the following ones up to `last` whose offset deltas differ in
    the first byte only: these first bytes, and the common rest. `index` is less than INDEXES."""
    at = index % _RUN
    until = at + last - index
    if index < _TWO_BYTES:
        return _LAYOUTS[needs_keys][0], _LAST[at:until], b""
    if index < _THREE_BYTES:
        return _LAYOUTS[needs_keys][1], _MORE[at:until], index >> 6
    return _LAYOUTS[needs_keys][2], _MORE[at:until], (index >> 6 & 0x7F | 0x80) << 8 | index >> 13
