"""Tests of the virtual event loop: time jumps, callbacks belong to their owners, and callbacks of dead processes do not
run."""

from __future__ import annotations

import asyncio

import pytest

from kpybroker.sim.world.loop import EPOCH_S, Dead, Owner, Stuck, VirtualLoop


def loop_with_problems() -> tuple[VirtualLoop, list[str]]:
    problems: list[str] = []
    loop = VirtualLoop(lambda owner, text, raised: problems.append(f"{owner.name} {raised!r}"))  # type: ignore[abstract]
    return loop, problems


def test_time_jumps_to_the_next_timer_and_asyncio_runs_unmodified() -> None:
    async def play() -> list[str]:
        seen: list[str] = []

        async def wait(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append(f"{name} {asyncio.get_running_loop().time() - EPOCH_S:.1f}")

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.gather(wait("b", 7.5), wait("a", 2.5), asyncio.Event().wait())
        seen.append(f"{asyncio.get_running_loop().time() - EPOCH_S:.1f}")
        return seen

    loop, problems = loop_with_problems()
    assert loop.run_until_complete(play()) == ["a 2.5", "b 7.5", "3600.0"]
    assert problems == []


def test_a_run_that_cannot_end_is_reported() -> None:
    async def wait_for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck):
        loop_with_problems()[0].run_until_complete(wait_for_ever())


def test_halted_callbacks_wait_and_keep_their_order() -> None:
    loop, _ = loop_with_problems()
    owner, seen = Owner("one"), []

    async def play() -> None:
        with loop.acting(owner):
            for number in range(4):
                loop.call_later(number, seen.append, number)
        await asyncio.sleep(0.5)
        loop.halt(owner)
        await asyncio.sleep(10)
        assert seen == [0]
        loop.go_on(owner)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen == [0, 1, 2, 3]

    loop.run_until_complete(play())


def test_a_task_belongs_to_its_owner_whichever_process_wakes_it() -> None:
    """If a process sends a response to a client and then dies, the client continues to run."""
    loop, _ = loop_with_problems()
    process = Owner("process")

    async def play() -> str:
        answer: asyncio.Future[str] = loop.create_future()
        with loop.acting(process):
            loop.call_later(1, answer.set_result, "answer")
        told = await answer
        loop.bury(process)
        await asyncio.sleep(1)
        return told

    assert loop.run_until_complete(play()) == "answer"


def test_the_world_is_dead_before_finally_blocks_run() -> None:
    loop, problems = loop_with_problems()
    owner, seen = Owner("doomed"), []

    async def work() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            seen.append(owner.alive)
            raise Dead

    async def play() -> None:
        with loop.acting(owner):
            loop.create_task(work())
            loop.call_later(5, seen.append, "never")
        await asyncio.sleep(1)
        loop.bury(owner)
        await asyncio.sleep(10)

    loop.run_until_complete(play())
    assert seen == [False]
    assert problems == []


def test_an_exception_in_a_callback_is_reported_with_its_owner() -> None:
    loop, problems = loop_with_problems()

    def fail() -> None:
        raise ValueError("oh")

    async def play() -> None:
        with loop.acting(Owner("clumsy")):
            loop.call_soon(fail)
        await asyncio.sleep(1)

    loop.run_until_complete(play())
    assert problems == ["clumsy ValueError('oh')"]
