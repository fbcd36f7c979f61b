"""Tests the laws of scheduled records on small histories: a sound one has no breach, and each breach is found."""

from __future__ import annotations

import pytest

from kpybroker.sim.laws.scheduled_law import breaches, missing
from kpybroker.sim.world.history import Sent, SentTransaction

PLACE = ("later", 0)


def _sent(value: bytes, due_ms: int | None, acked_ms: int | None, committed: bool | None = None) -> Sent:
    sent = Sent(value, PLACE, -1, True, is_acked=acked_ms is not None, acked_ms=acked_ms, due_ms=due_ms)
    if committed is not None:
        transaction = SentTransaction("tx")
        transaction.add([sent])
        transaction.decide(committed)
    return sent


SENT = {
    each.value: each
    for each in (
        _sent(b"now", None, 10),
        _sent(b"early", 100, 20),
        _sent(b"late", 200, 15),
        _sent(b"overdue", 30, 40),
        _sent(b"tardy", 90, 150),
        _sent(b"lost", 50, None),
        _sent(b"committed", 300, 60, True),
        _sent(b"aborted", 300, 60, False),
    )
}
FOUND = [(0, b"now"), (1, b"overdue"), (5, b"early"), (6, b"tardy"), (7, b"late"), (8, b"committed")]
SEEN_MS = {b"now": 10, b"overdue": 40, b"early": 100, b"late": 200, b"committed": 300}


def _breaches(found: list[tuple[int, bytes]], seen_ms: dict[bytes, int], *, is_timely: bool = True) -> list[str]:
    return list(breaches(SENT, found, seen_ms, is_timely=is_timely))


def test_a_sound_history_has_no_breach() -> None:
    assert _breaches(FOUND, SEEN_MS) == []
    assert missing(SENT, FOUND) == []


@pytest.mark.parametrize("value", [b"now", b"early", b"late", b"overdue", b"committed"])
def test_a_record_that_was_acknowledged_or_committed_must_appear(value: bytes) -> None:
    assert missing(SENT, [each for each in FOUND if each[1] != value]) == [value]


@pytest.mark.parametrize(
    ("found", "seen_ms", "sentence"),
    [
        ([*FOUND, (9, b"late")], SEEN_MS, "b'late' appears 2 times"),
        ([*FOUND, (9, b"aborted")], SEEN_MS, "b'aborted' appears, although its transaction was aborted"),
        (FOUND, {**SEEN_MS, b"late": 199}, "b'late' was read 1 ms before its time"),
        (
            [(0, b"now"), (5, b"late"), (6, b"early"), (7, b"committed")],
            SEEN_MS,
            "b'early' is due 100 ms before b'late', but follows it",
        ),
    ],
)
def test_each_breach_is_found(found: list[tuple[int, bytes]], seen_ms: dict[bytes, int], sentence: str) -> None:
    assert _breaches(found, seen_ms) == [sentence]


def test_clocks_that_differ_excuse_only_the_time_and_the_order() -> None:
    found = [(5, b"late"), (6, b"early"), (7, b"early")]
    assert _breaches(found, {b"late": 1}, is_timely=False) == ["b'early' appears 2 times"]


def test_a_record_that_came_too_late_may_follow_one_that_is_due_later() -> None:
    assert _breaches([(5, b"early"), (6, b"tardy")], {}) == []
    assert _breaches([(5, b"early"), (6, b"overdue")], {}) != []
