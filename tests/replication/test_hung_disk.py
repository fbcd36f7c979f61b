"""A hung disk interrupts the service for no longer than a hung node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kpybroker.raft.core.state import Tail, VoteAsked
from kpybroker.raft.log.quorum_state import read_quorum_state
from kpybroker.server.metrics.endpoints import why_not_ready
from kpybroker.sim.clients.client import SimClient, Unanswered
from kpybroker.sim.cluster.cluster import SimMachine
from kpybroker.world.devices import SLOW_WRITE_S
from tests.asking import produced
from tests.replication.virtual import VirtualCluster, play

pytestmark = pytest.mark.slow

HANG_S = 20.0
SESSION_S = 3.0
FETCH_TIMEOUT_S = 2.0
"""The defaults of broker.session.timeout.ms and controller.quorum.fetch.timeout.ms."""
SPARE_S = 1.0
PATIENCE_S = 0.5
EVERY_S = 0.05


def hang(machine: SimMachine) -> None:
    """From now on, let the disk, which is known to be slow, complete neither writes nor syncs."""
    storage, process, now_s = machine.storage, machine.process, asyncio.get_running_loop().time()
    assert process is not None
    process.world.disk.device("/data").took(SLOW_WRITE_S, now_s)
    storage.stalled_below, storage.stalled_until_s = "/data", now_s + HANG_S


def hang_syncs(machine: SimMachine) -> None:
    """From now on, let only syncs hang. The page cache still accepts writes."""
    machine.storage.sync_s = (HANG_S, HANG_S)


class Writer:
    """Writes with acks=all to a topic's leader, and measures the longest time without an acknowledgement."""

    def __init__(self, cluster: VirtualCluster, topic: str, number: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._client = SimClient(f"writer {topic}", f"10.0.2.{number}", number, cluster.fabric, cluster.where)
        self._loop = cluster.loop
        self._acked_at_s = cluster.loop.time()
        self.longest_s = 0.0
        self.acked = 0

    async def run(self, until_s: float) -> None:
        while self._loop.time() < until_s:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._put()
            except (OSError, Unanswered, TimeoutError):
                pass
            await asyncio.sleep(EVERY_S)
        self._note()

    def _note(self) -> None:
        now_s = self._loop.time()
        self.longest_s = max(self.longest_s, now_s - self._acked_at_s)
        self._acked_at_s = now_s

    async def _put(self) -> None:
        leader = self._cluster.image(self._topic).leader
        peer = await self._client.peer(leader)
        told = await peer.ask("Produce", produced(self._topic, b"x", acks=-1), version=12)
        if told.responses[0].partition_responses[0].error_code == 0:
            self.acked += 1
            self._note()


def leader_of_the_quorum(cluster: VirtualCluster) -> int:
    return next(node_id for node_id, one in cluster.brokers.items() if one.quorum.is_leader)


@pytest.mark.parametrize("how", [hang, hang_syncs])
@pytest.mark.parametrize("leads_the_quorum", [False, True])
def test_acks_all_continues_when_a_disk_hangs(how: Callable[[SimMachine], None], leads_the_quorum: bool) -> None:
    """This holds for partitions that the node leads or follows, and whether or not it leads the quorum."""

    async def scene(cluster: VirtualCluster) -> None:
        topics = [f"t{node_id}" for node_id in cluster.machines]
        for number, topic in enumerate(topics):
            ids = list(cluster.machines)
            await cluster.create((*ids[number:], *ids[:number]), topic=topic, min_insync_replicas="2")
            await cluster.put(b"first", topic=topic)
        controller = leader_of_the_quorum(cluster)
        bad = controller if leads_the_quorum else next(each for each in cluster.machines if each != controller)
        epoch = cluster.broker(controller).quorum.epoch
        how(cluster.machines[bad])
        until_s = cluster.loop.time() + HANG_S - 2 * SPARE_S
        writers = [Writer(cluster, topic, number + 1) for number, topic in enumerate(topics)]
        await asyncio.gather(*(writer.run(until_s) for writer in writers))
        limit_s = SESSION_S + SPARE_S + (FETCH_TIMEOUT_S if leads_the_quorum else 0.0)
        longest_s = {topic: writer.longest_s for topic, writer in zip(topics, writers, strict=True)}
        assert max(longest_s.values()) < limit_s, longest_s
        assert min(writer.acked for writer in writers) > 10
        assert why_not_ready(cluster.broker(bad)) == "the disk of /data does not respond"
        others = [each for each in cluster.machines if each != bad]
        for other in others:
            assert cluster.broker(other).metadata.image.brokers[bad].fenced
        assert leader_of_the_quorum(cluster) in others
        if not leads_the_quorum:
            assert cluster.broker(controller).quorum.epoch == epoch, "the leader of the quorum on a good disk continues"
        cluster.machines[bad].storage.sync_s = (0.001, 0.001)
        await cluster.until(
            lambda: all(sorted(cluster.image(topic).isr) == [1, 2, 3] for topic in topics), "all are in sync again"
        )
        assert cluster.broker(bad).storage.disk_watch.hung == {}
        assert cluster.history.breaches == []

    play(scene, kpybroker_fsync="always")


def test_a_lone_broker_waits_for_its_disk() -> None:
    """No other broker can lead, so the broker stays unfenced, and responds when its disk responds again."""

    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1,))
        await cluster.put(b"first")
        broker, began_s = cluster.broker(1), cluster.loop.time()
        epoch = broker.quorum.epoch
        hang(cluster.machines[1])
        put = asyncio.ensure_future(cluster.put(b"waits"))
        await cluster.until(lambda: bool(broker.storage.disk_watch.hung), "it is noticed")
        assert cluster.loop.time() - began_s < SESSION_S + SPARE_S
        await put
        assert cluster.loop.time() - began_s >= HANG_S
        assert not broker.metadata.image.brokers[1].fenced
        assert broker.quorum.epoch == epoch
        await cluster.until(lambda: not broker.storage.disk_watch.hung, "its disk responds again")

    play(scene, count=1)


def test_a_voter_abstains_while_its_disk_hangs() -> None:
    """The voter grants no vote, and is not blocked by writing one. When the disk responds again, it votes again."""

    async def scene(cluster: VirtualCluster) -> None:
        controller = leader_of_the_quorum(cluster)
        bad, candidate = (each for each in cluster.machines if each != controller)
        quorum = cluster.broker(bad).quorum
        await cluster.create((1, 2, 3))
        await cluster.put(b"first")
        hang(cluster.machines[bad])
        hung_until_s = cluster.loop.time() + HANG_S
        put = asyncio.ensure_future(cluster.create((1, 2, 3), topic="metadata-to-write"))
        await cluster.until(lambda: bool(cluster.broker(bad).storage.disk_watch.hung), "it is noticed", 2 * SESSION_S)
        epoch, asked_at_s = quorum.epoch, cluster.loop.time()
        tail = Tail(epoch, quorum.log.end + 100)
        for _ in range(3):
            assert not quorum.driver.step(VoteAsked(candidate, epoch + 1, tail, False, b""))
        assert (quorum.epoch, cluster.loop.time()) == (epoch, asked_at_s), "nothing was written, and no request waited"
        assert quorum.state.voted.voted_id == voted_on_disk(cluster, bad)
        await cluster.until(lambda: not cluster.broker(bad).storage.disk_watch.hung, "it answers", 2 * HANG_S)
        assert cluster.loop.time() >= hung_until_s
        await put
        await asyncio.sleep(SPARE_S)
        assert quorum.driver.step(
            VoteAsked(candidate, quorum.epoch + 1, Tail(quorum.epoch, quorum.log.end), False, b"")
        )
        assert voted_on_disk(cluster, bad) == candidate

    play(scene)


def voted_on_disk(cluster: VirtualCluster, node_id: int) -> int:
    broker = cluster.broker(node_id)
    return read_quorum_state(broker.world, broker.quorum.driver.path)[0].voted_id
