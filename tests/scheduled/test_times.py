"""Tests the headers deliver-at and deliver-after."""

from __future__ import annotations

import pytest

from kpybroker.scheduled.times import DELIVER_AFTER, DELIVER_AT, due_ms

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("value", "after_ms"),
    [
        (b"30s", 30_000),
        (b"5m", 300_000),
        (b"2h", 7_200_000),
        (b"7d", 604_800_000),
        (b"1500", 1500),
        (b"1500ms", 1500),
        (b"0", 0),
    ],
)
def test_spans(value: bytes, after_ms: int) -> None:
    assert due_ms(DELIVER_AFTER, value, NOW_MS) == NOW_MS + after_ms


def test_times() -> None:
    assert due_ms(DELIVER_AT, b"1800000000000", NOW_MS) == 1_800_000_000_000
    assert due_ms(DELIVER_AT, b"0", NOW_MS) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [(DELIVER_AT, b"9223372036854775808"), (DELIVER_AFTER, b"106751991167d"), (DELIVER_AFTER, b"9" * 20)],
)
def test_times_beyond_the_range_of_timestamps(name: bytes, value: bytes) -> None:
    with pytest.raises(ValueError, match="beyond the range"):
        due_ms(name, value, NOW_MS)


@pytest.mark.parametrize(
    "value", [None, b"", b"soon", b"-1", b"1.5s", b" 1s", b"1 s", b"1S", b"1w", b"9" * 40, b"\xff"]
)
@pytest.mark.parametrize("name", [DELIVER_AT, DELIVER_AFTER])
def test_what_is_no_time_is_named(name: bytes, value: bytes | None) -> None:
    with pytest.raises(ValueError, match=f"^{name.decode()} must be .*, not .{{0,80}}$"):
        due_ms(name, value, NOW_MS)
