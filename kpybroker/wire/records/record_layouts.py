"""Tables for the walk over records: how far a length reaches, and what the offset deltas of a batch look like.

Both are varints, zigzag. The tables are for those as short as they can be; of others they say that they do not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

INDEXES = 1 << 20
"""Records of a batch that have a layout, which is as many as three bytes can tell."""
MISFIT = 1 << 40
"""A position behind the end of anything."""
_RUN = 64
_TWO_BYTES, _THREE_BYTES = _RUN, _RUN << 7
"""The first offset deltas that take as many."""


class Layout(NamedTuple):
    """Of records whose offset deltas take as many bytes."""

    unpack: Callable[[Any, int], tuple[Any, ...]]
    """From the offset delta on: its first byte, the rest of it, the first byte of the key's length.

    Raises struct.error at the end of the bytes.
    """
    width: int
    """Bytes of the offset delta: where the key's length is."""
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
"""By the first byte of a length: how far what is behind its bytes is from it.

From 0x80 on a second byte follows, and if that is the last, it says 64 more for each 1.
"""
AFTER_NAME = [MISFIT if byte == 1 else after for byte, after in enumerate(AFTER_LENGTH)]
"""The same for what must not be absent."""
_LAYOUTS = [
    [_layout(width, rest, needs_keys=needs_keys) for width, rest in ((1, "0s"), (2, "B"), (3, "H"))]
    for needs_keys in (False, True)
]
_LAST = range(0, 2 * _RUN, 2)
_MORE = range(0x80, 0x80 + 2 * _RUN, 2)


def layout_at(index: int, last: int, needs_keys: bool) -> tuple[Layout, range, int | bytes]:
    """The layout of the record `index` of a batch, and of the next ones up to `last` of which the offset deltas have
    nothing but their first bytes different: those bytes, and the rest of them all. `index` is less than INDEXES.
    """
    at = index % _RUN
    until = at + last - index
    if index < _TWO_BYTES:
        return _LAYOUTS[needs_keys][0], _LAST[at:until], b""
    if index < _THREE_BYTES:
        return _LAYOUTS[needs_keys][1], _MORE[at:until], index >> 6
    return _LAYOUTS[needs_keys][2], _MORE[at:until], (index >> 6 & 0x7F | 0x80) << 8 | index >> 13
