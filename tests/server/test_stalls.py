"""Stalls of the event loop are counted once, and blamed only on what took most of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.server.connections.stalls import BLOCKED, FLUSH, OTHER, STALL_MS, STALL_S, Stalls
from kpybroker.server.requests.timing import EVERY, Timing
from kpybroker.wire.rpc import api_versions, metadata
from kpybroker.world.real import RealWorld
from tests.serving import dialled, serving

parts = st.floats(0, 0.1)


class SteppedWorld(RealWorld):
    """Its steady clock stands still from `stop` on, except for `block`, so that a busy machine cannot cause a stall."""

    stopped_ms: int | None = None

    def steady_ms(self) -> int:
        return super().steady_ms() if self.stopped_ms is None else self.stopped_ms

    def stop(self) -> None:
        self.stopped_ms = self.steady_ms()

    def block(self, api: str, seconds: float) -> None:
        assert self.stopped_ms is not None, "not stopped"
        self.stopped_ms += STALL_MS


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["Metadata", "ApiVersions"])
@pytest.mark.parametrize("before", [0, 1, EVERY - 1])
def test_a_stall_is_blamed_on_the_slow_request_of_a_read_event(tmp_path: Path, slow: str, before: int) -> None:
    """`before` requests of the same read event run before the slow one, and others after it."""

    async def scenario() -> None:
        world = SteppedWorld(7)
        async with serving(tmp_path, world=world) as node, dialled(node) as peer:
            asked = {"Metadata": metadata.Request(topics=[]), "ApiVersions": api_versions.Request()}
            [quick] = asked.keys() - {slow}
            stalls = Stalls()
            world.stop()
            node.server.watch(Timing(world.block), stalls)  # which calls it in the EVERYth request
            for apis in ([quick] * (EVERY - 1 - before), [*[quick] * before, slow, quick, quick]):
                await asyncio.gather(*(peer.ask(api, asked[api], version=0) for api in apis))
            assert stalls.counts.keys() - {FLUSH} == {slow}
            assert stalls.counts[slow] == 1
            assert stalls.seconds[slow] == STALL_S
            world.stopped_ms = None

    asyncio.run(scenario())


@given(parts, parts, parts)
@settings(deadline=None)
def test_a_late_timer_is_blamed_on_a_wait_only_if_the_thread_waited(
    early_s: float, ran_s: float, waited_s: float
) -> None:
    """Before the stall, the thread ran for `early_s`."""
    stalls, late_s = Stalls(), ran_s + waited_s
    stalls.late(late_s, early_s + ran_s)
    assert stalls.take_worst() == late_s
    if late_s < STALL_S:
        assert not stalls.counts
        return
    [(cause, seconds)] = stalls.seconds.items()
    assert seconds == late_s
    assert stalls.counts == {cause: 1}
    if cause == BLOCKED:
        assert waited_s >= late_s / 2 - 1e-9
    else:
        assert cause == OTHER
        assert early_s + ran_s >= late_s / 2 - 1e-9, "it certainly waited"


@given(st.lists(st.floats(STALL_S, 0.1), max_size=3), st.floats(0, 0.1))
@settings(deadline=None)
def test_a_measured_stall_is_not_counted_again_by_the_late_timer(measured_s: list[float], rest_s: float) -> None:
    stalls = Stalls()
    for took_s in measured_s:
        stalls.add("Produce", took_s)
    late_s = sum(measured_s) + rest_s
    stalls.late(late_s, late_s)
    unexplained = stalls.counts.get(OTHER, 0)
    assert stalls.counts.get("Produce", 0) == len(measured_s)
    if abs(rest_s - STALL_S) > 1e-9:
        assert unexplained == (rest_s > STALL_S)
    stalls.late(STALL_S, STALL_S)  # what was explained once explains nothing later
    assert stalls.counts.get(OTHER, 0) == unexplained + 1
