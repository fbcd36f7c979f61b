"""Streams groups over a socket, for tests of the streams handlers."""

from __future__ import annotations

from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.wire.rpc import create_topics, find_coordinator
from kpybroker.wire.rpc.streams_group_heartbeat import Request, Topology

AT_ONCE = {
    "group.streams.assignment.interval.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.min.heartbeat.interval.ms": "10",
    "group.streams.heartbeat.interval.ms": "10",
}


async def topic(peer: Peer, name: str = "t", partitions: int = 2) -> None:
    """Create a topic, and wait for the group coordinators."""
    wanted = create_topics.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    await peer.ask("CreateTopics", create_topics.Request(topics=[wanted]))
    await peer.ask("FindCoordinator", find_coordinator.Request(coordinator_keys=["g"]))


async def join(peer: Peer, topology: Topology, group: str = "g", member: str = "m", **said: Any) -> Any:
    given: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": [], "process_id": member}
    request = Request(
        group_id=group, member_id=member, topology=topology, rebalance_timeout_ms=60_000, **{**given, **said}
    )
    return await peer.ask("StreamsGroupHeartbeat", request)


async def joined(peer: Peer, topology: Topology, group: str = "g", member: str = "m") -> Any:
    """Join until nothing is missing; returns that response."""
    told = await join(peer, topology, group, member)
    while told.status:
        assert told.error_code == 0, told
        told = await join(peer, topology, group, member)
    return told


async def beat(peer: Peer, epoch: int, group: str = "g", member: str = "m", **said: Any) -> Any:
    return await peer.ask(
        "StreamsGroupHeartbeat", Request(group_id=group, member_id=member, member_epoch=epoch, **said)
    )
