"""Long work on the loop: everybody has a turn, and there is a bound to how much begins, or waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.storage.slices import AT_ONCE, SlicedWork, Work, at_once
from kpybroker.world.real import RealWorld


def running(scenario: Callable[[SlicedWork], Awaitable[None]]) -> None:
    world = RealWorld(1)
    try:
        asyncio.run(asyncio.wait_for(_call(scenario, SlicedWork(world.disk)), 30))
    finally:
        world.close()


async def _call(scenario: Callable[[SlicedWork], Awaitable[None]], sliced: SlicedWork) -> None:
    await scenario(sliced)


def counting(name: str, slices: int, told: list[str]) -> Work[str]:
    for _ in range(slices):
        told.append(name)
        yield None
    return name


def test_works_take_turns_and_only_so_many_at_once() -> None:
    async def scenario(sliced: SlicedWork) -> None:
        told: list[str] = []
        names = [str(number) for number in range(AT_ONCE + 2)]
        found = await asyncio.gather(*(sliced.run(counting(name, 3, told)) for name in names))
        assert found == names
        assert told[: 3 * AT_ONCE] == names[:AT_ONCE] * 3, "each has a slice before any has the next"
        assert told[3 * AT_ONCE :] == names[AT_ONCE:] * 3

    running(scenario)


def test_there_is_one_slice_in_a_turn_of_the_loop() -> None:
    async def scenario(sliced: SlicedWork) -> None:
        told: list[str] = []
        works = [asyncio.ensure_future(sliced.run(counting(str(number), 20, told))) for number in range(4)]
        while not all(work.done() for work in works):
            before = len(told)
            await asyncio.sleep(0)
            assert len(told) - before <= 1
        assert len(told) == 80

    running(scenario)


def test_no_more_wait_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kpybroker.storage.slices.WAITING_LIMIT", 2)

    async def scenario(sliced: SlicedWork) -> None:
        told: list[str] = []
        works = [asyncio.ensure_future(sliced.run(counting("x", 3, told))) for _ in range(AT_ONCE + 2)]
        await asyncio.sleep(0)
        with pytest.raises(KafkaError) as refusal:
            await sliced.run(counting("y", 3, told))
        assert refusal.value.code == ErrorCode.REQUEST_TIMED_OUT
        await asyncio.gather(*works)
        assert await sliced.run(counting("z", 3, told)) == "z"

    running(scenario)


def test_what_is_cancelled_gives_its_place_to_another() -> None:
    async def scenario(sliced: SlicedWork) -> None:
        told: list[str] = []
        works = [asyncio.ensure_future(sliced.run(counting("x", 10**9, told))) for _ in range(AT_ONCE)]
        waiting = [asyncio.ensure_future(sliced.run(counting(name, 1, told))) for name in "abc"]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        for work in works:
            work.cancel()
        for work in (*works, waiting[0]):
            with contextlib.suppress(asyncio.CancelledError):
                await work
        assert await asyncio.gather(*waiting[1:]) == ["b", "c"]
        many = (sliced.run(counting(str(number), 1, told)) for number in range(AT_ONCE))
        assert len(await asyncio.gather(*many)) == AT_ONCE, "no place was lost"

    running(scenario)


def off_loop(step: Callable[[], Any]) -> Work[Any]:
    try:
        found = yield step
    except KafkaError as refusal:
        return refusal.code
    return found


def test_a_step_off_the_loop_is_answered_or_raises_in_its_work() -> None:
    def refuse() -> None:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE)

    async def scenario(sliced: SlicedWork) -> None:
        assert await sliced.run(off_loop(lambda: 7)) == 7
        assert await sliced.run(off_loop(refuse)) == ErrorCode.CORRUPT_MESSAGE
        begun = off_loop(lambda: 8)
        assert await sliced.run(begun, next(begun)) == 8

    running(scenario)
    assert at_once(off_loop(lambda: 7)) == 7
    assert at_once(off_loop(refuse)) == ErrorCode.CORRUPT_MESSAGE
