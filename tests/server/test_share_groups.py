"""Share groups work if partition leaders, share coordinators and the group coordinator are on different brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kpybroker.client.peer import Peer
from kpybroker.topics import SHARE_STATE_TOPIC
from kpybroker.wire.records.batch import Record, encode_batch
from kpybroker.wire.rpc import create_topics, describe_share_group_offsets, find_coordinator, metadata, produce
from tests.handlers.sharing import ACCEPT, RELEASE, acknowledge, beat, codes, configure, fetch, ranges
from tests.server.clustering import Cluster, dialled, run_cluster

PARTITIONS = 6


async def append(peer: Peer, index: int) -> None:
    records = encode_batch([Record(0, 1, None, b"x") for _ in range(10)])
    row = produce.PartitionProduceData(index=index, records=bytes(records))
    topic = produce.TopicProduceData(name="t", partition_data=[row])
    told = await peer.ask("Produce", produce.Request(acks=-1, timeout_ms=9000, topic_data=[topic]), version=9)
    assert told.responses[0].partition_responses[0].error_code == 0


async def described(peer: Peer) -> dict[int, tuple[int, int]]:
    """The start offset and the lag of each partition."""
    rpc = describe_share_group_offsets
    asked = rpc.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=None)
    [group] = (await peer.ask("DescribeShareGroupOffsets", rpc.Request(groups=[asked]))).groups
    return {row.partition_index: (row.start_offset, row.lag) for topic in group.topics for row in topic.partitions}


@pytest.mark.slow
def test_state_is_kept_by_coordinators_on_other_brokers(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        peers = {node_id: await dialled(node) for node_id, node in cluster.nodes.items()}
        topic = create_topics.CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1)
        await peers[1].ask("CreateTopics", create_topics.Request(topics=[topic], timeout_ms=9000))
        asked = metadata.Request(topics=[metadata.MetadataRequestTopic(name="t")])
        [known] = (await peers[1].ask("Metadata", asked)).topics
        leaders = {row.partition_index: row.leader_id for row in known.partitions}
        topic_id = bytes(known.topic_id)
        assert set(leaders.values()) == {1, 2, 3}
        for index, leader in leaders.items():
            await append(peers[leader], index)
        await configure(peers[1], "g", auto_offset_reset="earliest")
        [found] = (await peers[1].ask("FindCoordinator", find_coordinator.Request(coordinator_keys=["g"]))).coordinators
        coordinator = peers[found.node_id]
        told: Any = await beat(coordinator, "g", "m", 0, "t")
        while not (told.assignment and told.assignment.topic_partitions):
            assert told.error_code == 0, told
            told = await beat(coordinator, "g", "m", told.member_epoch, "t")
        states = cluster.nodes[1].broker.metadata.image.topics[SHARE_STATE_TOPIC].partitions
        assert {state.leader for state in states} == {1, 2, 3}
        for leader, peer in peers.items():
            own = [index for index, at in leaders.items() if at == leader]
            assert sorted(ranges(await fetch(peer, topic_id, 0, partitions=own))) == [(0, 9, 1)] * len(own)
            for number, index in enumerate(own, 1):
                told = await acknowledge(peer, topic_id, number, (0, 3, ACCEPT), (4, 9, RELEASE), partition=index)
                assert codes(told) == [0]
        assert await described(coordinator) == dict.fromkeys(range(PARTITIONS), (0, 6))
        for peer in peers.values():
            peer.close()

    settings = {"share_coordinator_state_topic_num_partitions": "6", "group_share_assignment_interval_ms": "0"}
    run_cluster(tmp_path, play, **settings)


@pytest.mark.slow
def test_a_broker_that_leads_no_partition_names_the_leader(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        peer = await dialled(cluster.nodes[1])
        topic = create_topics.CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1)
        await peer.ask("CreateTopics", create_topics.Request(topics=[topic], timeout_ms=9000))
        image = cluster.nodes[1].broker.metadata.image
        place = next(at for at, each in enumerate(image.topics["t"].partitions) if each.leader != 1)
        told = await fetch(peer, image.topics["t"].id, 0, partitions=[place])
        [row] = told.responses[0].partitions
        leader = image.topics["t"].partitions[place].leader
        assert (row.error_code, row.current_leader.leader_id) == (6, leader)
        assert [each.node_id for each in told.node_endpoints] == [leader]
        peer.close()

    run_cluster(tmp_path, play)
