"""Who waits until others have applied the metadata goes on when they have, when they are gone, or when time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from kpybroker.raft.duties.applied_offsets import NODES_MAX, AppliedOffsets

LONG_MS = 60_000


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 20))


async def waiting(
    followed: AppliedOffsets, nodes: list[int], end: int, timeout_ms: int = LONG_MS
) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(followed.wait(lambda: nodes, end, timeout_ms))
    await asyncio.sleep(0)
    return task


def test_all_must_have_applied_it() -> None:
    async def scenario() -> None:
        followed = AppliedOffsets()
        followed.note(2, 10)
        task = await waiting(followed, [2, 3], 10)
        followed.note(3, 9)
        await asyncio.sleep(0)
        assert not task.done()
        followed.note(3, 10)
        await task
        assert (followed.applied(2), followed.applied(3), followed.applied(4)) == (9, 9, -1)
        await followed.wait(lambda: [2, 3], 10, LONG_MS)

    run(scenario())


def test_who_is_not_live_any_more_is_not_waited_for() -> None:
    async def scenario() -> None:
        followed, nodes = AppliedOffsets(), [2, 3]
        followed.note(2, 5)
        task = await waiting(followed, nodes, 5)
        nodes.remove(3)
        followed.look_again()
        await task

    run(scenario())


def test_the_end_of_a_reign_or_of_the_time_ends_the_wait() -> None:
    async def scenario() -> None:
        followed = AppliedOffsets()
        followed.note(2, 5)
        first = await waiting(followed, [3], 5)
        followed.forget_all()
        await first
        assert followed.applied(2) == -1
        await (await waiting(followed, [3], 5, timeout_ms=1))

    run(scenario())


def test_those_who_fetch_are_known_whoever_else_claims_to() -> None:
    followed = AppliedOffsets()
    for stranger in range(3 * NODES_MAX):
        followed.note(2, 10)
        followed.note(1000 + stranger, 5)
    assert followed.applied(2) == 9
    assert sum(followed.applied(node_id) >= 0 for node_id in range(1000 + 3 * NODES_MAX)) == NODES_MAX
