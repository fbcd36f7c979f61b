"""Three nodes on real sockets: acknowledged records survive the loss of the leader, and a returning node catches up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.replication.partition.partition import Partition
from kpybroker.wire.records.batch import read_records, split
from kpybroker.wire.rpc import create_topics, fetch, list_offsets
from tests.asking import fetched, produced
from tests.server.clustering import Cluster, run_cluster

pytestmark = pytest.mark.slow

ALL = 3
QUICK = {"broker_session_timeout_ms": "1000", "replica_fetch_backoff_ms": "100"}


async def dial(cluster: Cluster, node_id: int) -> Peer:
    """Connect to a node's listener for clients."""
    node = cluster.nodes[node_id]
    peer = await Peer.dial(node.broker.world.network, "127.0.0.1", node.advertised[0].port)
    await peer.negotiate()
    return peer


async def make(cluster: Cluster, topic: str, factor: int = ALL, **configs: str) -> None:
    """Create a topic with one partition and this many replicas."""
    peer = await dial(cluster, min(cluster.nodes))
    wanted = create_topics.CreatableTopic(
        name=topic,
        num_partitions=1,
        replication_factor=factor,
        configs=[
            create_topics.CreatableTopicConfig(name=name.replace("_", "."), value=value)
            for name, value in configs.items()
        ],
    )
    told = await peer.ask("CreateTopics", create_topics.Request(topics=[wanted], timeout_ms=5000))
    assert told.topics[0].error_code == 0, told.topics[0]
    peer.close()
    await cluster.until(
        lambda: len(replicas(cluster, topic)) == factor,
        f"{topic} is hosted by {factor}",
    )


def replicas(cluster: Cluster, topic: str) -> dict[int, Partition]:
    found = {node_id: node.broker.replication.hosting.find(topic, 0) for node_id, node in cluster.nodes.items()}
    return {node_id: partition for node_id, partition in found.items() if partition is not None}


def leader_of(cluster: Cluster, topic: str) -> int:
    """The leader of a partition; -1 while the nodes do not agree on a running leader."""
    leaders = {partition.leader_id for partition in replicas(cluster, topic).values()}
    return leaders.pop() if len(leaders) == 1 and leaders <= set(cluster.nodes) else -1


async def led(cluster: Cluster, topic: str) -> int:
    await cluster.until(lambda: leader_of(cluster, topic) >= 0, f"{topic} has a running leader")
    return leader_of(cluster, topic)


async def put(cluster: Cluster, topic: str, *values: bytes, acks: int = -1) -> Any:
    """Produce to the leader, and return the response."""
    peer = await dial(cluster, await led(cluster, topic))
    told = await peer.ask("Produce", produced(topic, *values, acks=acks), version=12)
    peer.close()
    return told.responses[0].partition_responses[0]


async def read_all(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    """The first records of a partition, from its leader."""
    peer = await dial(cluster, await led(cluster, topic))
    values: list[bytes] = []
    offset = 0
    while offset < count:
        told = await peer.ask("Fetch", fetched(topic, offset, wait_ms=500), version=12)
        row = told.responses[0].partitions[0]
        assert row.error_code == 0, row
        for batch in split(bytes(row.records)) if row.records else []:
            values += [bytes(record.value or b"") for record in read_records(batch) if record.offset >= offset]
            offset = batch.next_offset
    peer.close()
    return values


def is_whole(cluster: Cluster, topic: str, isr: int = ALL) -> bool:
    found = replicas(cluster, topic)
    ends = {partition.log.end for partition in found.values()}
    return len(found) == isr and len(ends) == 1 and all(len(partition.isr) == isr for partition in found.values())


def play(root: Path, scene: Callable[[Cluster], Awaitable[None]], **settings: str) -> None:
    async def whole(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        await scene(cluster)

    run_cluster(root, whole, voters=ALL, **{**QUICK, **settings})


def test_acknowledged_records_survive_their_leader(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        await make(cluster, "t", min_insync_replicas="2")
        first = await led(cluster, "t")
        sent = [b"%d" % number for number in range(50)]
        for number, value in enumerate(sent):
            answer = await put(cluster, "t", value)
            assert (answer.error_code, answer.base_offset) == (0, number)
        await cluster.stop(first)
        assert await led(cluster, "t") != first
        assert await read_all(cluster, "t", 50) == sent
        await cluster.until(lambda: is_whole(cluster, "t", 2), "the two remaining nodes agree")
        assert (await put(cluster, "t", b"meanwhile")).error_code == 0
        await cluster.start(first)
        await cluster.until(lambda: is_whole(cluster, "t"), "all three are in sync again")
        assert await read_all(cluster, "t", 51) == [*sent, b"meanwhile"]
        marks = {partition.log.high_watermark for partition in replicas(cluster, "t").values()}
        assert max(marks) == 51
        logs = [
            bytes(one.log.read(0, 1 << 20, upper=51, min_one=True) or b"") for one in replicas(cluster, "t").values()
        ]
        assert logs[0] == logs[1] == logs[2], "followers keep the leader's bytes"

    play(tmp_path, scene)


def test_a_follower_names_the_leader(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        await make(cluster, "t")
        leader = await led(cluster, "t")
        other = next(node_id for node_id in cluster.nodes if node_id != leader)
        peer = await dial(cluster, other)
        told = await peer.ask("Produce", produced("t", b"x", acks=-1), version=12)
        answer = told.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answer.current_leader is not None
        assert answer.current_leader.leader_id == leader
        assert [node.port for node in told.node_endpoints] == [cluster.nodes[leader].advertised[0].port]
        peer.close()
        await make(cluster, "one", factor=1)
        leader = await led(cluster, "one")
        other = next(node_id for node_id in cluster.nodes if node_id != leader)
        peer = await dial(cluster, other)
        wanted = fetch.FetchPartition(partition=0, partition_max_bytes=1 << 20)
        topic_id = cluster.nodes[other].broker.metadata.image.topics["one"].id
        asked = fetch.Request(session_epoch=-1, topics=[fetch.FetchTopic(topic_id=topic_id, partitions=[wanted])])
        found = await peer.ask("Fetch", asked, version=16)
        row = found.responses[0].partitions[0]
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert row.current_leader.leader_id == leader
        assert [node.node_id for node in found.node_endpoints] == [leader]
        peer.close()

    play(tmp_path, scene)


def test_too_few_in_sync_replicas(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        await make(cluster, "t", min_insync_replicas="3")
        assert (await put(cluster, "t", b"a")).error_code == 0
        leader = await led(cluster, "t")
        gone = next(node_id for node_id in cluster.nodes if node_id != leader)
        await cluster.stop(gone)
        await cluster.until(lambda: is_whole(cluster, "t", 2), "the third is out of sync")
        assert (await put(cluster, "t", b"b")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await put(cluster, "t", b"c", acks=1)).error_code == 0
        peer = await dial(cluster, leader)
        row = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
        asked = list_offsets.Request(replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name="t", partitions=[row])])
        told = await peer.ask("ListOffsets", asked)
        assert told.topics[0].partitions[0].offset == 1, "records on too few replicas are not visible"
        await cluster.start(gone)
        await cluster.until(lambda: is_whole(cluster, "t"), "all three are in sync again")
        assert (await put(cluster, "t", b"d")).error_code == 0
        assert await read_all(cluster, "t", 3) == [b"a", b"c", b"d"]
        peer.close()

    play(tmp_path, scene)


def test_a_lost_directory_is_refilled(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        await make(cluster, "t")
        for number in range(20):
            assert (await put(cluster, "t", b"%d" % number)).error_code == 0
        leader = await led(cluster, "t")
        gone = next(node_id for node_id in cluster.nodes if node_id != leader)
        await cluster.stop(gone)
        await asyncio.to_thread(_remove, cluster.root / str(gone) / "t-0")
        await cluster.start(gone)
        await cluster.until(lambda: is_whole(cluster, "t"), "the lost log has been restored")

    play(tmp_path, scene)


def _remove(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()


def test_a_restart_in_the_same_epoch_keeps_topics_created_since_the_last_snapshot(tmp_path: Path) -> None:
    """The Image from the local disk has the leader's epoch but lacks these topics. Their logs must not be deleted as
    leftovers."""

    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        active = await cluster.leader()
        topics = [f"t{number}" for number in range(6)]
        for topic in topics:
            await make(cluster, topic)
            await put(cluster, topic, b"kept")
        back = next(node_id for node_id in cluster.nodes if node_id != active)
        directory = cluster.root / str(back)
        for topic in topics:
            await cluster.until(lambda topic=topic: end_of(cluster, topic, back) == 1, f"{topic} is copied")  # type: ignore[misc]
        await cluster.stop(back)
        await cluster.start(back)
        assert not list(directory.glob("*-stray"))
        assert all((directory / f"{topic}-0").is_dir() for topic in topics)

    run_cluster(tmp_path, play, **QUICK, metadata_log_max_record_bytes_between_snapshots="1000")


def end_of(cluster: Cluster, topic: str, node_id: int) -> int:
    return replicas(cluster, topic)[node_id].log.end
