"""Tests that timers fire as in a simple list of deadlines, however often they are moved."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.groups.ground.step import Step
from kpybroker.groups.ground.timers import Timer, Timers
from kpybroker.machine.contract import Moment

MOVES = st.lists(
    st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers(0, 30)), st.integers(0, 10)), max_size=60
)


@settings(max_examples=100, deadline=None)
@given(MOVES)
def test_they_fire_like_a_plain_list(moves: list[tuple[int, int | None, int]]) -> None:
    now_ms = 0
    timers = Timers()
    fired: list[tuple[int, int]] = []
    handles = [Timer(lambda step, name=name: fired.append((step.now_ms, name))) for name in range(5)]
    plain: dict[int, int] = {}
    expected: list[tuple[int, int]] = []
    for name, in_ms, passes_ms in moves:
        if in_ms is None:
            handles[name].cancel()
            plain.pop(name, None)
        else:
            timers.set(handles[name], now_ms + in_ms)
            plain[name] = now_ms + in_ms
        end_ms = now_ms + passes_ms
        while plain and min(plain.values()) <= end_ms:
            due_ms = min(plain.values())
            for each in [each for each, at_ms in plain.items() if at_ms == due_ms]:
                expected.append((due_ms, each))
                del plain[each]
        while (deadline_ms := timers.deadline_ms()) is not None and deadline_ms <= end_ms:
            now_ms = max(now_ms, deadline_ms)
            timers.fire_due(Step(Moment(now_ms, now_ms)), 100, 1 << 20)
        now_ms = end_ms
    assert sorted(fired) == sorted(expected)


def test_a_step_fires_a_limited_number() -> None:
    timers = Timers()
    fired: list[int] = []
    for _ in range(5):
        timers.set(Timer(lambda step: fired.append(step.now_ms)), 10)
    timers.fire_due(Step(Moment(10, 10)), 2, 1 << 20)
    assert len(fired) == 2
    assert timers.deadline_ms() == 10
    timers.fire_due(Step(Moment(10, 10)), 100, 0)
    assert len(fired) == 2  # no space for the records that they might write
    timers.fire_due(Step(Moment(10, 10)), 100, 1 << 20)
    assert len(fired) == 5
    assert timers.deadline_ms() is None


def test_cancelled_timers_do_not_pile_up() -> None:
    timers = Timers()
    fired: list[int] = []
    kept = Timer(lambda step: fired.append(step.now_ms))
    timers.set(kept, 500_000)
    for number in range(20_000):
        timer = Timer(lambda step: fired.append(-1))
        timers.set(timer, 1_000_000 - number)
        if number % 2:
            timer.cancel()
        else:
            timers.set(timer, 10)  # an earlier deadline: the first entry is now obsolete
            timer.cancel()
    assert len(timers) < 2_048
    timers.fire_due(Step(Moment(2_000_000, 2_000_000)), 100, 1 << 20)
    assert fired == [2_000_000]
