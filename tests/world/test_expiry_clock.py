"""Alarms of the expiry clock ring in order of time, whether time passes or the clock is advanced."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from kpybroker.world.expiry_clock import Alarm, ExpiryClock
from tests.words import run

TIMES = st.lists(st.integers(1, 100), max_size=8, unique=True)


def clock() -> ExpiryClock:
    return ExpiryClock(lambda: round(asyncio.get_running_loop().time() * 1000))


@given(TIMES, st.lists(st.integers(0, 60), max_size=5))
def test_advancing_rings_what_the_passing_of_time_would_ring(at: list[int], steps: list[int]) -> None:
    """After the same time, the same alarms have rung, in the same order."""

    async def rung(is_advanced: bool) -> list[list[int]]:
        made = clock()
        start_ms, rang = made.now_ms(), list[list[int]]()
        order: list[int] = []
        for number, at_ms in enumerate(at):
            made.call_at(start_ms + at_ms, lambda number=number: order.append(number))
        for step_ms in steps:
            if is_advanced:
                made.advance(step_ms)
            else:
                await asyncio.sleep(step_ms / 1000)
            await asyncio.sleep(0)
            rang.append(sorted(order))
        assert order == sorted(order, key=lambda number: at[number])
        left = [at_ms for number, at_ms in enumerate(at) if number not in order]
        next_ms = made.next_ms()
        assert next_ms == (max(start_ms + min(left) - made.now_ms(), 0) if left else None)
        return rang

    async def scenario() -> None:
        assert await rung(True) == await rung(False)

    run(scenario)


def test_an_alarm_rings_at_its_time_although_the_clock_was_advanced_before() -> None:
    async def scenario() -> None:
        made = clock()
        rang: list[int] = []
        made.call_at(made.now_ms() + 100, lambda: rang.append(made.now_ms()))
        due_ms = made.now_ms() + 100
        made.advance(70)
        await asyncio.sleep(0.029)
        assert rang == []
        await asyncio.sleep(0.002)
        assert len(rang) == 1
        assert abs(rang[0] - due_ms) <= 1

    run(scenario)


def test_alarms_may_set_and_cancel_others() -> None:
    async def scenario() -> None:
        made = clock()
        now_ms = made.now_ms()
        rang: list[str] = []
        later: list[Alarm] = []

        def first() -> None:
            rang.append("first")
            later[0].cancel()
            made.call_at(now_ms + 5, lambda: rang.append("third"))

        made.call_at(now_ms + 10, first)
        later.append(made.call_at(now_ms + 20, lambda: rang.append("second")))
        made.advance(30)
        assert rang == ["first"]
        await asyncio.sleep(0.002)  # what an alarm sets is due when the loop runs next, even if its time has passed
        assert rang == ["first", "third"]
        assert made.next_ms() is None

    run(scenario)
