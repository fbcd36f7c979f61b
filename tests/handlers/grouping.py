"""Helpers that create topics, a coordinator and members, for tests of the group handlers."""

from __future__ import annotations

from struct import pack
from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.wire.rpc import create_topics, find_coordinator, join_group, offset_commit, offset_fetch, sync_group

SUBSCRIBED_TO_T = pack(">hih", 0, 1, 1) + b"t" + pack(">i", -1)
"""A consumer's subscription to the topic t."""


async def coordinator(peer: Peer, *topics: str) -> None:
    """Create the topics, with two partitions each, and a coordinator for groups."""
    wanted = [create_topics.CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in topics]
    if wanted:
        await peer.ask("CreateTopics", create_topics.Request(topics=wanted))
    reply = await peer.ask("FindCoordinator", find_coordinator.Request(coordinator_keys=["g"]))
    assert reply.coordinators[0].error_code == 0


def joining(group: str, member_id: str = "", *, instance: str | None = None) -> join_group.Request:
    return join_group.Request(
        group_id=group,
        member_id=member_id,
        group_instance_id=instance,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIBED_TO_T)],
    )


def syncing(group: str, member_id: str, generation: int, assignment: bytes = b"all") -> sync_group.Request:
    return sync_group.Request(
        group_id=group,
        member_id=member_id,
        generation_id=generation,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[sync_group.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)],
    )


async def member(peer: Peer, group: str) -> str:
    """Create a group with one member, which is stable in generation 1. Returns the member's id."""
    joined = await peer.ask("JoinGroup", joining(group), version=3)
    assert (joined.error_code, joined.generation_id) == (0, 1)
    synced = await peer.ask("SyncGroup", syncing(group, joined.member_id, 1))
    assert synced.error_code == 0
    member_id: str = joined.member_id
    return member_id


async def commit(peer: Peer, group: str, topic: str = "t", offset: int = 5, *, version: int = 9, **more: Any) -> int:
    """Commit an offset for partition 0. Returns the error code."""
    partition = offset_commit.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=3, committed_metadata="note"
    )
    asked = offset_commit.OffsetCommitRequestTopic(name=topic, partitions=[partition])
    reply = await peer.ask(
        "OffsetCommit", offset_commit.Request(group_id=group, topics=[asked], **more), version=version
    )
    return int(reply.topics[0].partitions[0].error_code)


async def committed(peer: Peer, group: str, topic: str = "t") -> int:
    """The committed offset of partition 0, or -1."""
    asked = offset_fetch.OffsetFetchRequestGroup(
        group_id=group, topics=[offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    )
    reply = await peer.ask("OffsetFetch", offset_fetch.Request(groups=[asked]), version=9)
    assert reply.groups[0].error_code == ErrorCode.NONE
    return int(reply.groups[0].topics[0].partitions[0].committed_offset)
