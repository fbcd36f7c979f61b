"""Checks the records of small batches quickly. A batch that fails this check may be valid: `walk_through` decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kpybroker.errors import KafkaError
from kpybroker.wire.records.record_fields import after_value, record_size, varint
from kpybroker.wire.records.record_scan import Walk

if TYPE_CHECKING:
    from mypy_extensions import i64

_EVER: Final = 1 << 64


def are_sound(plain: bytes, count: int, newest: int) -> bool:
    """Whether `plain` contains exactly `count` valid records, and `newest` is the largest timestamp delta."""
    found = Walk(-_EVER, newest, needs_keys=False)
    try:
        at = found.some(plain, 0, count)
    except (IndexError, KafkaError):
        return False
    return at == len(plain) and found.seen == count and found.newest == newest and not found.out_of_time


def is_sole_record(plain: bytes) -> bool:
    """Whether `plain` contains exactly one record without headers and with the base timestamp, as in most small
    batches."""
    end: i64 = len(plain)
    try:
        size: i64 = plain[0]
        at: i64 = 1
        if size > 0x7F:
            size, at = record_size(plain, 0)
        if at + (size >> 1) != end or size & 1 or plain[at + 1] or plain[at + 2]:
            return False
        key: i64 = plain[at + 3]
        at += 4
        if key > 0x7F:
            key, at = varint(plain, at - 1)
        at = after_value(plain, at + (key >> 1))
        return at + 1 == end and not plain[at] and (not key & 1 or key == 1)
    except (IndexError, KafkaError):
        return False
