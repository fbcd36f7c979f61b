"""The headers with which a producer schedules a record: `deliver-at` and `deliver-after`."""

from __future__ import annotations

import re

DELIVER_AT, DELIVER_AFTER = b"deliver-at", b"deliver-after"
"""The names of the headers. If a record has several of them, the last one counts, so that a record can be sent again
with another time without removing the earlier header."""
ACCEPTED, OFFSET = b"deliver-accepted", b"deliver-offset"
"""Headers of a delivered record: the time at which it was accepted (milliseconds since the epoch), and the offset that
its producer was told. Both are in ASCII."""
_UNITS_MS = {b"": 1, b"ms": 1, b"s": 1000, b"m": 60_000, b"h": 3_600_000, b"d": 86_400_000}
_TIME = re.compile(rb"[0-9]{1,20}")
_SPAN = re.compile(rb"([0-9]{1,20})(ms|s|m|h|d|)")
_SHOWN_BYTES = 40
_LATEST_MS = (1 << 63) - 1


def due_ms(name: bytes, value: bytes | None, now_ms: int) -> int:
    """The time at which a record with this header is due, in milliseconds since the epoch. Raises ValueError."""
    if name == DELIVER_AT:
        if value is None or not _TIME.fullmatch(value):
            raise ValueError(f"deliver-at must be milliseconds since the epoch in ASCII, not {_shown(value)}")
        return _checked(int(value))
    span = None if value is None else _SPAN.fullmatch(value)
    if span is None:
        raise ValueError(f"deliver-after must be milliseconds, or a number with ms, s, m, h or d, not {_shown(value)}")
    return _checked(now_ms + int(span[1]) * _UNITS_MS[span[2]])


def _checked(time_ms: int) -> int:
    if time_ms > _LATEST_MS:
        raise ValueError("the time is beyond the range of timestamps")
    return time_ms


def _shown(value: bytes | None) -> str:
    return "null" if value is None else repr(value[:_SHOWN_BYTES].decode("ascii", "backslashreplace"))
