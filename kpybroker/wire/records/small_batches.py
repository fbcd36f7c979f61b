"""Checks the records of small batches quickly. A batch that fails this check may be valid: `walk_through` decides."""

from __future__ import annotations

from struct import Struct

from kpybroker.errors import KafkaError
from kpybroker.wire.records.record_fields import Piece, record_size
from kpybroker.wire.records.record_scan import Walk

_EVER = 1 << 64
_FIRST = Struct(">6B").unpack_from


def are_sound(plain: Piece, count: int, newest: int) -> bool:
    """Whether `plain` contains exactly `count` valid records, and `newest` is the largest timestamp delta."""
    found = Walk(-_EVER, newest, needs_keys=False)
    try:
        at = found.some(plain, 0, count)
    except (IndexError, KafkaError):
        return False
    return at == len(plain) and found.seen == count and found.newest == newest and not found.out_of_time


def is_sole_record(view: Piece, at: int) -> bool:
    """Whether `view`, from `at` on, contains exactly one record without headers and with the base timestamp, as in most
    small batches. There must be at least seven bytes. If the result is False, `walk` decides."""
    end = len(view)
    size, more, delta, offset, key, after = _FIRST(view, at)
    if size < 0x80:
        at += 1
    elif more < 0x80:
        at += 2
        size = size & 0x7F | more << 7
        delta, offset, key = offset, key, after
    else:
        size, at = record_size(view, at)
        delta, offset, key = view[at + 1 : at + 4]
    if at + (size >> 1) != end or size & 1 or delta or offset:
        return False
    at += 4
    if key != 1:
        at += key >> 1
        if key & 1 or key > 0x7F or at >= end:
            return False
    value = view[at]
    at += 1
    if value > 0x7F:
        value = value & 0x7F | view[at] << 7
        at += 1
        if value > 0x3FFF:
            value, at = record_size(view, at - 2)
    if value & 1:
        return value == 1 and at + 1 == end and not view[at]
    at += value >> 1
    return at + 1 == end and not view[at]
