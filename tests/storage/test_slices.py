"""Long work on the event loop lets other work run, and the number of running and waiting works is limited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.storage.log.slices import (
    AT_ONCE,
    MIDDLING_SLICES,
    SHORT_AT_ONCE,
    SHORT_SLICES,
    Places,
    SlicedWork,
    Work,
    at_once,
    nothing_open,
)
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


def test_works_take_turns_and_only_a_few_run_at_once() -> None:
    async def scenario(sliced: SlicedWork) -> None:
        told: list[str] = []
        names = [str(number) for number in range(SHORT_AT_ONCE + 2)]
        found = await asyncio.gather(*(sliced.run(partial(counting, name, 3, told)) for name in names))
        assert found == names
        assert told[: 3 * SHORT_AT_ONCE] == names[:SHORT_AT_ONCE] * 3, "each has a slice before any has the next"
        assert told[3 * SHORT_AT_ONCE :] == names[SHORT_AT_ONCE:] * 3

    running(scenario)


def test_one_slice_runs_in_a_turn_of_the_loop() -> None:
    async def scenario(sliced: SlicedWork) -> None:
        told: list[str] = []
        works = [asyncio.ensure_future(sliced.run(partial(counting, str(number), 20, told))) for number in range(4)]
        while not all(work.done() for work in works):
            before = len(told)
            await asyncio.sleep(0)
            assert len(told) - before <= 1
        assert len(told) == 80

    running(scenario)


def test_the_number_of_waiting_works_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kpybroker.storage.log.slices.WAITING_LIMIT", 2)

    async def scenario(sliced: SlicedWork) -> None:
        told: list[str] = []
        works = [asyncio.ensure_future(sliced.run(partial(counting, "x", 3, told))) for _ in range(SHORT_AT_ONCE + 2)]
        await asyncio.sleep(0)
        with pytest.raises(KafkaError) as refusal:
            await sliced.run(partial(counting, "y", 3, told))
        assert refusal.value.code == ErrorCode.REQUEST_TIMED_OUT
        await asyncio.gather(*works)
        assert await sliced.run(partial(counting, "z", 3, told)) == "z"

    running(scenario)


def test_a_cancelled_work_gives_its_place_to_another() -> None:
    async def scenario(sliced: SlicedWork) -> None:
        told: list[str] = []
        works = [asyncio.ensure_future(sliced.run(partial(counting, "x", 10**9, told))) for _ in range(AT_ONCE)]
        waiting = [asyncio.ensure_future(sliced.run(partial(counting, name, 1, told))) for name in "abc"]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        for work in works:
            work.cancel()
        for work in (*works, waiting[0]):
            with contextlib.suppress(asyncio.CancelledError):
                await work
        assert await asyncio.gather(*waiting[1:]) == ["b", "c"]
        many = (sliced.run(partial(counting, str(number), 1, told)) for number in range(AT_ONCE))
        assert len(await asyncio.gather(*many)) == AT_ONCE, "no place was lost"

    running(scenario)


def off_loop(step: Callable[[], Any]) -> Work[Any]:
    try:
        found = yield step
    except KafkaError as refusal:
        return refusal.code
    return found


def test_the_result_or_error_of_a_step_off_the_loop_gets_to_its_work() -> None:
    def refuse() -> None:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE)

    async def scenario(sliced: SlicedWork) -> None:
        assert await sliced.run(partial(off_loop, lambda: 7)) == 7
        assert await sliced.run(partial(off_loop, refuse)) == ErrorCode.CORRUPT_MESSAGE
        begun = off_loop(lambda: 8)
        assert await sliced.run(partial(off_loop, lambda: 9), begun, next(begun)) == 8

    running(scenario)
    assert at_once(off_loop(lambda: 7)) == 7
    assert at_once(off_loop(refuse)) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("slices", [1, SHORT_SLICES - 1])
def test_a_short_work_waits_for_a_bounded_number_of_slices_of_long_ones(slices: int) -> None:
    async def scenario(sliced: SlicedWork) -> None:
        told: list[str] = []
        works = [asyncio.ensure_future(sliced.run(partial(counting, "x", 10**9, told))) for _ in range(3 * AT_ONCE)]
        await asyncio.sleep(0)
        assert await sliced.run(partial(counting, "short", slices, told)) == "short"
        before = told.index("short")
        assert before <= 2 * 3 * AT_ONCE * SHORT_SLICES, (
            "short shares of all long works, and as many slices of the others"
        )
        assert len(told) - before <= 2 * AT_ONCE * SHORT_SLICES
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    running(scenario)


@pytest.mark.parametrize("slices", [SHORT_SLICES, MIDDLING_SLICES - 1])
def test_a_middling_work_does_not_wait_for_endless_ones(slices: int) -> None:
    """Works for batches of some megabytes are middling. Longer works give up their middling places."""

    async def scenario(sliced: SlicedWork) -> None:
        told: list[str] = []
        works = [asyncio.ensure_future(sliced.run(partial(counting, "x", 10**9, told))) for _ in range(AT_ONCE)]
        while len(told) < 2 * AT_ONCE * (SHORT_SLICES + MIDDLING_SLICES):
            await asyncio.sleep(0)
        begun = len(told)
        assert await sliced.run(partial(counting, "middling", slices, told)) == "middling"
        assert len(told) - begun <= AT_ONCE * (slices + SHORT_SLICES), (
            "it shares the turns with the works that have places"
        )
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    running(scenario)


@pytest.mark.parametrize("slices", [SHORT_SLICES, SHORT_SLICES + 1, MIDDLING_SLICES, MIDDLING_SLICES + 1])
def test_a_work_starts_again_in_a_longer_place(slices: int) -> None:
    async def scenario(sliced: SlicedWork) -> None:
        told: list[str] = []
        assert await sliced.run(partial(counting, "x", slices - 1, told)) == "x"
        before = (SHORT_SLICES if slices > SHORT_SLICES else 0) + (MIDDLING_SLICES if slices > MIDDLING_SLICES else 0)
        assert len(told) == slices - 1 + before

    running(scenario)


def resting(name: str, batches: int, told: list[str]) -> Work[str]:
    for _ in range(batches):
        yield from counting(name, 2 * SHORT_SLICES, told)
        yield nothing_open
    return name


def test_a_long_work_gives_up_its_place_between_two_batches() -> None:
    async def scenario(sliced: SlicedWork) -> None:
        told: list[str] = []
        works = [asyncio.ensure_future(sliced.run(partial(resting, "x", 10**9, told))) for _ in range(AT_ONCE)]
        assert await sliced.run(partial(resting, "y", 2, told)) == "y"
        ahead = told.count("x")
        assert ahead <= 4 * AT_ONCE * 2 * SHORT_SLICES, "about two batches of each other work before each of its own"
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    running(scenario)


def test_waiting_works_hold_nothing_open() -> None:
    """Work that has begun but has to wait is closed and starts again, so that places limit the number of
    decompressors."""

    async def scenario(sliced: SlicedWork) -> None:
        told: list[str] = []
        is_open: set[int] = set()

        def opened(number: int) -> Work[int]:
            is_open.add(number)
            try:
                yield from counting("x", 3 * SHORT_SLICES, told)
            finally:
                is_open.discard(number)
            return number

        numbers = range(3 * AT_ONCE)
        begun = [opened(number) for number in numbers]
        for each in begun:
            next(each)
        works = [
            asyncio.ensure_future(sliced.run(partial(opened, number), each))
            for number, each in zip(numbers, begun, strict=True)
        ]
        await asyncio.sleep(0)
        while not all(work.done() for work in works):
            assert len(is_open) <= AT_ONCE
            await asyncio.sleep(0)
        assert [work.result() for work in works] == list(numbers)

    running(scenario)


def test_no_work_waits_longer_than_its_timeout() -> None:
    async def scenario(sliced: SlicedWork) -> None:
        told: list[str] = []
        works = [asyncio.ensure_future(sliced.run(partial(counting, "x", 10**9, told))) for _ in range(AT_ONCE)]
        await asyncio.sleep(0)
        with pytest.raises(KafkaError) as refusal:
            await sliced.run(partial(counting, "y", 1, told), timeout_ms=0)
        assert refusal.value.code == ErrorCode.REQUEST_TIMED_OUT
        assert "y" not in told
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        assert await sliced.run(partial(counting, "y", 1, told), timeout_ms=0) == "y", "a place is free"

    running(scenario)


def test_a_work_that_is_cancelled_in_the_turn_of_its_refusal_frees_no_place() -> None:
    """The cancelled work has no place to free. Otherwise each such cancellation would add a place."""

    async def scenario() -> None:
        places, loop = Places(2), asyncio.get_running_loop()
        for _ in range(2):
            await places.enter(None)
        deadline = loop.time() + 0.01
        late = [asyncio.ensure_future(places.enter(deadline)) for _ in range(3)]
        await asyncio.sleep(0)
        for work in late:
            loop.call_at(deadline, work.cancel)
        await asyncio.gather(*late, return_exceptions=True)
        assert not places.is_free
        for _ in range(2):
            places.leave()
        entered = 0
        while places.is_free:
            await places.enter(None)
            entered += 1
        assert entered == 2

    asyncio.run(scenario())
