"""Throttles (KIP-73): out-of-sync replicas are replicated no faster than the rate, and in-sync replicas are not
slowed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from kpybroker.config import LogSettings
from kpybroker.replication.partition.replica_rules import ReplicaRules
from kpybroker.replication.partition.throttle import Throttle
from kpybroker.world.real import RealWorld
from tests.replication.leading import NODE, Host, leading
from tests.replication.virtual import BROKER, TOPIC, VirtualCluster, play

RATE = 20_000
BATCH = 1_000 + 61 + 7
COUNT = 150
KEYS = ("leader_replication_throttled", "follower_replication_throttled")


class Clock:
    now_ms = 1000

    def now(self) -> int:
        return self.now_ms


async def _fill(cluster: VirtualCluster) -> None:
    await cluster.create((1, 2), topic="t", min_insync_replicas="2")
    for _ in range(COUNT):
        await cluster.put(bytes(1000))


async def _watch(cluster: VirtualCluster, ends: list[tuple[float, int]]) -> None:
    """Record the (time, log end) of the new replica."""
    while True:
        found = cluster.broker(3).replication.hosting.find("t", 0)
        ends.append((cluster.loop.time(), 0 if found is None else found.log.end))
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("named", ["*", "0:1,0:3"])
@pytest.mark.parametrize("key", KEYS)
def test_a_new_replica_is_replicated_no_faster_than_the_rate(key: str, named: str) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await _fill(cluster)
        for node_id in (1, 2, 3):
            await cluster.configure(BROKER, str(node_id), **{f"{key}_rate": str(RATE)})
        await cluster.configure(TOPIC, "t", **{f"{key}_replicas": named})
        ends: list[tuple[float, int]] = []
        watching = asyncio.get_running_loop().create_task(_watch(cluster, ends))
        assert (await cluster.reassign(1, 2, 3)).error_code == 0
        began = cluster.loop.time()
        while 3 not in cluster.image().isr:
            before = cluster.loop.time()
            await cluster.put(bytes(1000))
            assert cluster.loop.time() - before < 0.5, "replicas in sync are not slowed"
            await asyncio.sleep(0.2)
        took = cluster.loop.time() - began
        watching.cancel()
        assert COUNT * BATCH / RATE * 0.8 < took < COUNT * BATCH / RATE * 2
        overshoot = RATE + BATCH  # a response has the bytes of one second, rounded up to a whole batch
        for place, (since, had) in enumerate(ends):
            for until, has in ends[place + 1 :]:
                assert (has - had) * BATCH <= RATE * (until - since + 0.02) + overshoot
        await cluster.until(lambda: not cluster.image().adding_replicas, "the reassignment is complete")

    play(scene)


@pytest.mark.parametrize("key", KEYS)
def test_a_replica_that_is_not_listed_is_not_slowed(key: str) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await _fill(cluster)
        for node_id in (1, 2, 3):
            await cluster.configure(BROKER, str(node_id), **{f"{key}_rate": "10"})
        await cluster.configure(TOPIC, "t", **{f"{key}_replicas": "0:2,1:1,1:3"})
        await cluster.reassign(1, 2, 3)
        await cluster.until(lambda: 3 in cluster.image().isr, "it is in sync", limit_s=5)

    play(scene)


@pytest.mark.parametrize("key", KEYS)
def test_a_removed_throttle_slows_no_replica(key: str) -> None:
    """This includes a throttle with a rate of 0."""

    async def scene(cluster: VirtualCluster) -> None:
        await _fill(cluster)
        await cluster.configure(BROKER, "", **{f"{key}_rate": "0"})
        await cluster.configure(TOPIC, "t", **{f"{key}_replicas": "*"})
        await cluster.reassign(1, 2, 3)
        await asyncio.sleep(20)
        assert cluster.replica(3).log.end == 0
        await cluster.put(b"goes on")
        await cluster.configure(BROKER, "", **{f"{key}_rate": None})
        await cluster.until(lambda: 3 in cluster.image().isr, "it is in sync", limit_s=5)

    play(scene)


def test_the_rate_holds_over_any_period() -> None:
    random = Random(73)
    for _ in range(50):
        clock = Clock()
        throttle = Throttle(1, lambda it: it.leader_replication_throttled_replicas, clock.now)
        rate = random.choice((1, 7, 1000, 12_345, 10**7))
        throttle.limit(rate)
        most = random.choice((1, 100, 10**5))
        passed: list[tuple[int, int]] = []
        for _ in range(200):
            if throttle.must_wait:
                wait_ms = throttle.wait_ms
                assert wait_ms > 0
                clock.now_ms += random.choice((wait_ms, random.randrange(wait_ms + 1)))
                continue
            size = random.randrange(most) + 1
            throttle.count(size)
            passed.append((clock.now_ms, size))
            clock.now_ms += random.choice((0, 0, 1, 500))
        for first in range(len(passed)):
            total = 0
            for at_ms, size in passed[first:]:
                assert total <= rate * (at_ms - passed[first][0]) / 1000, "only the last response may exceed the rate"
                total += size


def test_without_a_rate_no_partition_is_slowed(tmp_path: Path) -> None:
    host = Host(ReplicaRules(NODE, now_ms=lambda: 0))
    settings = LogSettings(leader_replication_throttled_replicas=frozenset({"*"}))
    assert settings.leader_replication_throttled_replicas
    partition = leading(RealWorld(3), tmp_path, settings, host=host)
    assert not host.hosting.leading_throttle.slows(partition, 2)
    host.hosting.leading_throttle.limit(1)
    assert host.hosting.leading_throttle.slows(partition, 2)
