"""The timer of the quorum ticks when it is due. After a stall of the node, the node first reads data from other
nodes."""

from __future__ import annotations

import asyncio

from kpybroker.raft.core.state import LATE_MS, READING_MS
from kpybroker.raft.election_timer import ElectionTimer
from kpybroker.sim.world.loop import VirtualLoop


def ticks_of(*deadlines_ms: int) -> list[int]:
    """The times of the ticks if a timer is set to these times, one after another. All times are in ms from now."""
    ticks: list[int] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()
        begun_ms = int(loop.time() * 1000)
        timer = ElectionTimer(lambda: ticks.append(round(loop.time() * 1000) - begun_ms))
        for deadline_ms in deadlines_ms:
            timer.set(begun_ms + deadline_ms)
        await asyncio.sleep(60)

    VirtualLoop(lambda owner, text, raised: None).run_until_complete(play())  # type: ignore[abstract]
    return ticks


def test_it_ticks_once_at_the_earliest_time_that_was_set() -> None:
    assert ticks_of(500) == [500]
    assert ticks_of(500, 200, 900) == [200]


def test_a_node_that_stalled_reads_its_sockets_before_it_ticks() -> None:
    """Otherwise, the node would start an election while its leader's request waits in a socket."""
    punctual, late = ticks_of(-LATE_MS + 50), ticks_of(-10 * LATE_MS)
    assert len(punctual) == len(late) == 1
    assert late[0] == punctual[0] + READING_MS
