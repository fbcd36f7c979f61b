"""A slow log directory of one node delays only the partitions in it, and no other partition of the cluster."""

from __future__ import annotations

import asyncio

from kpybroker.replication.partition.partition import Partition
from kpybroker.sim.clients.client import SimClient
from kpybroker.world.devices import SLOW_WRITE_S
from tests.asking import produced
from tests.replication.virtual import VirtualCluster, play

DIRECTORIES = {"log_dirs": "/data,/more"}
WRITE_S = 3.0
QUICK_S = 1.0


def slow_down(cluster: VirtualCluster, node_id: int, below: str = "/more") -> None:
    """Make writes below a directory slow from now on, and let the node detect this."""
    machine = cluster.machines[node_id]
    machine.storage.slow_below, machine.storage.slow_s = below, WRITE_S
    cluster.broker(node_id).world.disk.device(below).took(SLOW_WRITE_S, cluster.loop.time())


async def placed(cluster: VirtualCluster, node_id: int) -> dict[str, str]:
    """Create a topic for each directory of a node. Node 1 leads the topics, and every node has a replica."""
    found: dict[str, str] = {}
    for number in range(4):
        topic = f"t{number}"
        await cluster.create((1, 2, 3), topic=topic, min_insync_replicas="2")
        await cluster.put(b"first", topic=topic)
        found.setdefault(cluster.replica(node_id, topic).log.directory.rpartition("/")[0], topic)
    assert sorted(found) == ["/data", "/more"]
    return found


def put_by_another(cluster: VirtualCluster, topic: str) -> asyncio.Task[int]:
    """Produce on a separate connection, because responses are sent in the order of requests."""
    client = SimClient("another", "10.0.1.2", 2, cluster.fabric, cluster.where)

    async def put() -> int:
        peer = await client.peer(1)
        request = produced(topic, b"second", acks=-1)
        request.timeout_ms = 60_000
        told = await peer.ask("Produce", request, version=12)
        peer.close()
        return int(told.responses[0].partition_responses[0].error_code)

    return asyncio.ensure_future(put())


def safe(partition: Partition) -> bool:
    return partition.log.written_end == partition.log.end == partition.log.high_watermark


def test_a_followers_slow_directory_delays_only_its_partitions() -> None:
    """The follower does not claim records that a thread is still writing. Partitions of the same leader in other
    directories continue."""

    async def scene(cluster: VirtualCluster) -> None:
        topics = await placed(cluster, 2)
        quorum = {node_id: broker.quorum.epoch for node_id, broker in cluster.brokers.items()}
        follower, leader = cluster.replica(2, topics["/more"]), cluster.replica(1, topics["/more"])
        slow_down(cluster, 2)
        waits = put_by_another(cluster, topics["/more"])
        await cluster.until(lambda: follower.log.behind is not None, "it is being written")
        for number in range(5):
            began_s = cluster.loop.time()
            await cluster.put(b"%d" % number, topic=topics["/data"])
            assert cluster.loop.time() - began_s < QUICK_S
            assert follower.log.behind is not None
            assert leader.log.high_watermark == follower.log.written_end == 1, "unwritten records do not count"
            assert not waits.done()
        assert await waits == 0
        assert follower.log.written_end == leader.log.high_watermark == 2
        assert tuple(sorted(leader.isr)) == (1, 2, 3)
        assert {node_id: broker.quorum.epoch for node_id, broker in cluster.brokers.items()} == quorum

    play(scene, **DIRECTORIES)


def test_a_leaders_slow_directory_delays_only_its_partitions() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        topics = await placed(cluster, 1)
        quorum = {node_id: broker.quorum.epoch for node_id, broker in cluster.brokers.items()}
        slow_down(cluster, 1)
        log = cluster.replica(1, topics["/more"]).log
        waits = put_by_another(cluster, topics["/more"])
        await cluster.until(lambda: log.behind is not None, "it is being written")
        for number in range(5):
            began_s = cluster.loop.time()
            await cluster.put(b"%d" % number, topic=topics["/data"])
            assert cluster.loop.time() - began_s < QUICK_S
        assert not waits.done()
        assert cluster.replica(2, topics["/more"]).log.end == 1, "unwritten records are not served"
        assert await waits == 0
        assert {node_id: broker.quorum.epoch for node_id, broker in cluster.brokers.items()} == quorum
        await cluster.until(lambda: all(safe(cluster.replica(at, topics["/more"])) for at in (1, 2, 3)), "all have it")

    play(scene, **DIRECTORIES)


def test_a_slow_metadata_directory_does_not_stop_the_node() -> None:
    """A voter does not claim records that a thread is still writing, and continues to serve clients."""

    async def scene(cluster: VirtualCluster) -> None:
        topics = await placed(cluster, 1)
        follower = next(node_id for node_id, one in cluster.brokers.items() if not one.quorum.is_leader)
        quorum = cluster.broker(follower).quorum
        slow_down(cluster, follower, "/data")
        made = asyncio.ensure_future(cluster.create((1, 2, 3), topic="made"))
        await cluster.until(lambda: quorum.log.behind is not None, "it is being written")
        end = quorum.log.written_end
        assert quorum.log.end > end
        leader = next(one.quorum for one in cluster.brokers.values() if one.quorum.is_leader)
        began_s = cluster.loop.time()
        told = await cluster.read(follower, topic=topics["/more"])
        assert told is not None
        assert cluster.loop.time() - began_s < QUICK_S
        assert quorum.log.behind is not None
        assert quorum.log.synced_end <= end
        now = leader.log.synced_end
        await cluster.until(lambda: quorum.log.synced_end >= now, "it has caught up")
        await made

    play(scene, **DIRECTORIES)
