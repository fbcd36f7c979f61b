"""The wait for other nodes to apply the metadata ends when they have applied it, when they have left, or after a
timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from kpybroker.raft.duties.applied_offsets import NODES_MAX, AppliedOffsets

LONG_MS = 60_000


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 20))


async def waiting(offsets: AppliedOffsets, nodes: list[int], end: int, timeout_ms: int = LONG_MS) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(offsets.wait(lambda: nodes, end, timeout_ms))
    await asyncio.sleep(0)
    return task


def test_a_wait_ends_when_all_nodes_have_applied_the_offset() -> None:
    async def scenario() -> None:
        offsets = AppliedOffsets()
        offsets.note(2, 10)
        task = await waiting(offsets, [2, 3], 10)
        offsets.note(3, 9)
        await asyncio.sleep(0)
        assert not task.done()
        offsets.note(3, 10)
        await task
        assert (offsets.applied(2), offsets.applied(3), offsets.applied(4)) == (9, 9, -1)
        await offsets.wait(lambda: [2, 3], 10, LONG_MS)

    run(scenario())


def test_a_node_that_is_no_longer_live_is_not_waited_for() -> None:
    async def scenario() -> None:
        offsets, nodes = AppliedOffsets(), [2, 3]
        offsets.note(2, 5)
        task = await waiting(offsets, nodes, 5)
        nodes.remove(3)
        offsets.look_again()
        await task

    run(scenario())


def test_a_wait_ends_with_the_leadership_or_its_timeout() -> None:
    async def scenario() -> None:
        offsets = AppliedOffsets()
        offsets.note(2, 5)
        first = await waiting(offsets, [3], 5)
        offsets.forget_all()
        await first
        assert offsets.applied(2) == -1
        await (await waiting(offsets, [3], 5, timeout_ms=1))

    run(scenario())


def test_a_node_that_fetches_is_not_dropped_for_unknown_ones() -> None:
    offsets = AppliedOffsets()
    for stranger in range(3 * NODES_MAX):
        offsets.note(2, 10)
        offsets.note(1000 + stranger, 5)
    assert offsets.applied(2) == 9
    assert sum(offsets.applied(node_id) >= 0 for node_id in range(1000 + 3 * NODES_MAX)) == NODES_MAX
