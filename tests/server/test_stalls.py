"""Stalls of the event loop are counted once, and blamed only on what took most of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from bench import stalls as bench_stalls
from bench.target import Target
from kpybroker.replication.partition.flush_queue import FlushQueue
from kpybroker.server.node import Node
from kpybroker.server.requests.timing import EVERY, Timing
from kpybroker.stalls import BLOCKED, FLUSH, METADATA, OTHER, STALL_MS, STALL_S, Stalls
from kpybroker.wire.rpc import api_versions, delete_topics, metadata
from kpybroker.world.real import RealDisk, RealWorld
from kpybroker.world.stopwatch import perf_counter
from tests.asking import fetched, make, put
from tests.server.raw import raw
from tests.server.test_endpoints import HTTP, get
from tests.serving import dialled, serving

parts = st.floats(0, 0.1)


class Clock:
    """A clock that only work moves. Times are in seconds; whole numbers of milliseconds add up without an error."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> float:
        return self.ms / 1000

    def work(self, ms: int) -> None:
        self.ms += ms


class Work:
    """A dirty partition, or a waiter, which does this when it is flushed or settled."""

    def __init__(self, do: Callable[[], None]) -> None:
        self.flush = self.settle = do


class SteppedWorld(RealWorld):
    """Its steady clock stands still from `stop` on, except for `block`, so that a busy machine cannot cause a stall."""

    stopped_ms: int | None = None

    def steady_ms(self) -> int:
        return super().steady_ms() if self.stopped_ms is None else self.stopped_ms

    def seconds(self) -> float:
        return self.steady_ms() / 1000

    def stop(self) -> None:
        self.stopped_ms = self.steady_ms()

    def block(self, api: str = "", seconds: float = 0.0) -> None:
        assert self.stopped_ms is not None, "not stopped"
        self.stopped_ms += STALL_MS + 1


BLOCK_S = (STALL_MS + 1) / 1000


def run_stepped(
    directory: Path, scenario: Callable[[SteppedWorld, Node, Stalls], Awaitable[None]], world: SteppedWorld
) -> None:
    async def whole() -> None:
        async with serving(directory, world=world) as node:
            await scenario(world, node, Stalls(world.seconds))
            world.stopped_ms = None

    asyncio.run(whole())


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["Metadata", "ApiVersions"])
@pytest.mark.parametrize("before", [0, 1, EVERY - 1])
def test_a_stall_is_blamed_on_the_slow_request_of_a_read_event(tmp_path: Path, slow: str, before: int) -> None:
    """`before` requests of the same read event run before the slow one, and others after it."""

    async def scenario(world: SteppedWorld, node: Node, stalls: Stalls) -> None:
        async with dialled(node) as peer:
            asked = {"Metadata": metadata.Request(topics=[]), "ApiVersions": api_versions.Request()}
            [quick] = asked.keys() - {slow}
            world.stop()
            node.server.watch(Timing(world.block), stalls)  # which calls it in the EVERYth request
            for apis in ([quick] * (EVERY - 1 - before), [*[quick] * before, slow, quick, quick]):
                await asyncio.gather(*(peer.ask(api, asked[api], version=0) for api in apis))
            assert stalls.counts == {slow: 1}
            assert stalls.seconds[slow] == pytest.approx(BLOCK_S)

    run_stepped(tmp_path, scenario, SteppedWorld(7))


@pytest.mark.slow
def test_a_slow_request_that_runs_inside_a_flush_is_counted_once(tmp_path: Path) -> None:
    """The flush completes a waiting Fetch, so that the next request of its connection runs, and is slow."""

    async def scenario(world: SteppedWorld, node: Node, stalls: Stalls) -> None:
        async with dialled(node) as peer, dialled(node) as other:
            await make(other, "t")
            world.stop()
            node.server.watch(Timing(world.block), stalls)
            for _ in range(EVERY - 3):
                await other.ask("ApiVersions", api_versions.Request(), version=0)
            waits, next_one = (fetched("t", 0, wait_ms=wait_ms) for wait_ms in (60_000, 0))
            fetching = asyncio.gather(*(peer.ask("Fetch", each, version=12) for each in (waits, next_one)))
            while not dict(node.server.requests_by_api()).get("Fetch"):
                await asyncio.sleep(0)
            await put(other, "t", b"one")
            await fetching
            assert stalls.counts == {"Fetch": 1}
            assert stalls.seconds["Fetch"] == pytest.approx(BLOCK_S)

    run_stepped(tmp_path, scenario, SteppedWorld(7))


@pytest.mark.slow
def test_a_slow_flush_inside_a_read_event_is_counted_once(tmp_path: Path) -> None:
    """A bad frame closes the connection, which first writes what has been appended."""

    async def scenario(world: SteppedWorld, node: Node, stalls: Stalls) -> None:
        queue = node.broker.replication.flush_queue
        world.stop()
        node.server.watch(Timing(lambda api, seconds: queue.dirty.append(Work(world.block))), stalls)
        frame = pack(">ihhih", 10, 18, 0, 1, -1)
        async with raw(node) as client:
            client.send(frame * EVERY + pack(">i", -5) + b"x" * 64)
            while await client.reader.read(1 << 16):
                pass
        assert stalls.counts == {FLUSH: 1}
        assert stalls.seconds[FLUSH] == pytest.approx(BLOCK_S)

    run_stepped(tmp_path, scenario, SteppedWorld(7))


@pytest.mark.slow
def test_a_slow_change_of_the_metadata_has_its_cause(tmp_path: Path) -> None:
    """The directory of a deleted topic is renamed while the deletion is applied."""
    world = SteppedWorld(7)

    class SlowDisk(RealDisk):
        def rename(self, old: str, new: str) -> None:
            super().rename(old, new)
            if new.endswith("-delete"):
                world.block()

    async def scenario(world: SteppedWorld, node: Node, stalls: Stalls) -> None:
        async with dialled(node) as peer:
            await make(peer, "t")
            await put(peer, "t", b"one")
            world.stop()
            node.server.watch(Timing(lambda api, seconds: None), stalls)
            wanted = delete_topics.DeleteTopicState(name="t", topic_id=bytes(16))
            await peer.ask("DeleteTopics", delete_topics.Request(topics=[wanted], timeout_ms=5000), version=6)
            assert stalls.counts == {METADATA: 1}

    world.disk = SlowDisk()
    run_stepped(tmp_path, scenario, world)


@pytest.mark.slow
def test_a_flush_that_blocks_is_in_the_metrics_and_in_the_bench(tmp_path: Path) -> None:
    def block() -> None:
        began = perf_counter()
        while perf_counter() < began + 2 * STALL_S:
            pass

    async def scenario() -> None:
        async with serving(tmp_path, HTTP) as node, dialled(node) as peer:
            await make(peer, "t")
            target = Target("kpybroker", node.bootstrap, 0, http=node.http or "")
            before = await asyncio.to_thread(bench_stalls.scrape, target)
            node.broker.replication.flush_queue.dirty.append(Work(block))
            await put(peer, "t", b"one")
            _, text = await get(node, "/metrics")
            after = await asyncio.to_thread(bench_stalls.scrape, target)
            assert before is not None
            assert after is not None
            assert after.since(before).count["flush"] >= 1
            found = {
                (sample.name, sample.labels.get("cause")): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
            assert found["kpybroker_loop_stalls_total", "flush"] >= 1
            assert found["kpybroker_loop_stall_seconds_total", "flush"] >= 2 * STALL_S
            assert found["kpybroker_loop_worst_stall_seconds", None] >= 2 * STALL_S

    asyncio.run(scenario())


@given(st.lists(st.tuples(st.sampled_from(["flush", "waiter"]), st.integers(0, 30), st.integers(0, 30)), max_size=6))
@settings(deadline=None)
def test_whoever_flushes_each_long_flush_is_counted_without_the_stalls_inside_it(
    works: list[tuple[str, int, int]],
) -> None:
    """Each partition and each waiter works for some ms itself, and for some ms in a request that it lets run."""
    clock = Clock()
    stalls, queue = Stalls(clock), FlushQueue()
    queue.stalls = stalls

    def work(own_ms: int, request_ms: int) -> None:
        clock.work(own_ms)
        with stalls.measured("Fetch"):
            clock.work(request_ms)

    for kind, *times in works:
        (queue.dirty if kind == "flush" else queue.woken).append(Work(partial(work, *times)))
    queue.flush()
    requests = [request_ms for _, _, request_ms in works if request_ms >= STALL_MS + 1]
    at_the_edge = any(request_ms == STALL_MS for _, _, request_ms in works)
    if at_the_edge:  # the sums of binary fractions decide
        return
    assert stalls.counts.get("Fetch", 0) == len(requests)
    rest_ms = clock.ms - sum(requests)
    if rest_ms != STALL_MS:
        assert stalls.counts.get(FLUSH, 0) == (rest_ms > STALL_MS)
        assert stalls.seconds.get(FLUSH, 0.0) == pytest.approx(rest_ms / 1000 if rest_ms > STALL_MS else 0.0)


@given(parts, parts, parts)
@settings(deadline=None)
def test_a_late_timer_is_blamed_on_a_wait_only_if_the_thread_waited(
    early_s: float, ran_s: float, waited_s: float
) -> None:
    """Before the stall, the thread ran for `early_s`."""
    stalls, late_s = Stalls(perf_counter), ran_s + waited_s
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
    stalls = Stalls(perf_counter)
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
