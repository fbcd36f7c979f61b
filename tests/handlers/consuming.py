"""Helpers that let members of consumer groups (KIP-848) join, for tests."""

from __future__ import annotations

from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.wire.rpc import consumer_group_heartbeat as rpc

AT_ONCE = {"group.consumer.assignment.interval.ms": "0"}
"""Members join at once, without an initial delay."""


async def beat(peer: Peer, group: str, member_id: str, epoch: int, *, version: int = 1, **said: Any) -> Any:
    """Send one heartbeat. Returns the response."""
    request = rpc.Request(group_id=group, member_id=member_id, member_epoch=epoch, **said)
    return await peer.ask("ConsumerGroupHeartbeat", request, version=version)


async def joined(peer: Peer, group: str, member_id: str, *, version: int = 1, **said: Any) -> Any:
    """Join as a member that subscribes to t unless `said` says otherwise. Returns the response."""
    said = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"], "topic_partitions": [], **said}
    return await beat(peer, group, member_id, 0, version=version, **said)


def partitions(answer: Any) -> list[int] | None:
    """The partitions of an assignment; None if the response has none."""
    if answer.assignment is None:
        return None
    return [partition for topic in answer.assignment.topic_partitions for partition in topic.partitions]
