"""A Fetch on the wrong listener, or from an old incarnation, has no effect."""

from __future__ import annotations

import asyncio
from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.raft.log.identity import METADATA_TOPIC_ID
from kpybroker.sim.cluster.setup import CONTROLLER_PORT
from kpybroker.wire.rpc import fetch, vote
from tests.asking import produced
from tests.replication.virtual import VirtualCluster, play


def fetched(topic_id: bytes, offset: int, replica_id: int, epoch: int = -1, **facts: Any) -> fetch.Request:
    partition = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, **facts)
    return fetch.Request(
        replica_state=fetch.ReplicaState(replica_id=replica_id, replica_epoch=epoch),
        topics=[fetch.FetchTopic(topic_id=topic_id, partitions=[partition])],
        session_epoch=-1,
        max_wait_ms=0,
    )


async def at_controller(cluster: VirtualCluster, node_id: int, name: str, request: Any) -> Any:
    peer = await Peer.dial(cluster.client.network, cluster.where[node_id][0], CONTROLLER_PORT, client_id="pretender")
    await peer.negotiate()
    try:
        return await peer.ask(name, request)
    finally:
        peer.close()


def leader_of_quorum(cluster: VirtualCluster) -> int:
    return next(node_id for node_id, broker in cluster.brokers.items() if broker.quorum.is_leader)


def test_the_metadata_log_is_not_served_on_a_client_listener() -> None:
    """On such a listener, a client could count as a voter, and commit records that it does not have."""

    async def scene(cluster: VirtualCluster) -> None:
        leader = leader_of_quorum(cluster)
        quorum = cluster.broker(leader).quorum
        for node_id in cluster.machines:
            if node_id != leader:
                cluster.machines[node_id].pause(True)
        before = quorum.state.high_watermark
        heard = dict(quorum.state.fetched_ms or {})
        other = next(node_id for node_id in cluster.machines if node_id != leader)
        far = fetched(METADATA_TOPIC_ID, quorum.log.end, other, current_leader_epoch=quorum.epoch)
        told = await cluster.ask("Fetch", far, leader)
        codes = [row.error_code for topic in told.responses for row in topic.partitions]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_ID]
        assert (quorum.state.high_watermark, dict(quorum.state.fetched_ms or {})) == (before, heard)
        for machine in cluster.machines.values():
            machine.pause(False)

    play(scene)


def test_only_the_metadata_log_is_served_on_a_controller_listener() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2, 3))
        await cluster.put(b"x")
        leader = cluster.image().leader
        topic_id = cluster.broker(leader).metadata.image.topics["t"].id
        for replica_id in (-1, 2):
            told = await at_controller(cluster, leader, "Fetch", fetched(topic_id, 0, replica_id))
            assert (told.error_code, told.responses) == (ErrorCode.INVALID_REQUEST, [])

    play(scene)


def test_a_fetch_of_an_old_incarnation_changes_nothing() -> None:
    """The new incarnation may have lost records of the old one (KIP-903)."""

    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2, 3), min_insync_replicas="2")
        end = await cluster.put(b"x") + 1
        await cluster.until(lambda: cluster.replica(1).log.high_watermark == end, "it is committed")
        topic_id = cluster.broker(1).metadata.image.topics["t"].id
        for node_id in (2, 3):
            cluster.machines[node_id].pause(True)
        peer = await cluster.client.peer(1)
        waiting = asyncio.ensure_future(peer.ask("Produce", produced("t", b"y", acks=-1), version=12))
        await cluster.until(lambda: cluster.replica(1).log.end == end + 1, "it is written")
        for node_id in (2, 3):
            epoch = cluster.broker(1).metadata.image.brokers[node_id].epoch
            told = await cluster.ask("Fetch", fetched(topic_id, end + 1, node_id, epoch - 1), 1)
            assert told.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert cluster.replica(1).log.high_watermark == end
        for node_id in (2, 3):
            cluster.machines[node_id].pause(False)
        await asyncio.gather(waiting, return_exceptions=True)
        await cluster.until(
            lambda: cluster.replica(1).log.high_watermark == end + 1, "the live replicas advance the high watermark"
        )

    play(scene)


def test_one_absurd_epoch_does_not_use_up_the_epochs() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        leader = leader_of_quorum(cluster)
        epoch = cluster.broker(leader).quorum.epoch
        partition = vote.PartitionData(
            partition_index=0, replica_epoch=2**31 - 1, replica_id=leader, last_offset_epoch=epoch, last_offset=1 << 40
        )
        request = vote.Request(
            cluster_id=cluster.broker(leader).storage.cluster_id,
            topics=[vote.TopicData(topic_name="__cluster_metadata", partitions=[partition])],
        )
        for node_id in cluster.machines:
            told = await at_controller(cluster, node_id, "Vote", request)
            row = told.topics[0].partitions[0]
            assert (row.error_code, row.vote_granted) == (ErrorCode.INVALID_REQUEST, False)
            assert cluster.broker(node_id).quorum.epoch == epoch
        await cluster.create((1, 2, 3))
        await cluster.put(b"x")

    play(scene)
