"""Each AlterPartition request is within its limit, regardless of how many ISRs are proposed at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kpybroker.client.dialer import Dialer
from kpybroker.config import LogSettings
from kpybroker.errors import ErrorCode
from kpybroker.metadata.image import PartitionImage
from kpybroker.replication.node import isr_proposals
from kpybroker.replication.node.controller_channel import ControllerChannel
from kpybroker.replication.node.isr_proposals import IsrProposals
from kpybroker.replication.partition.partition import Partition
from kpybroker.replication.partition.replica_rules import ReplicaRules
from kpybroker.storage.log.log import Log
from kpybroker.wire.api import by_name
from kpybroker.wire.rpc.alter_partition import PartitionDataReply, Request, Response, TopicDataReply
from kpybroker.world.real import RealWorld
from tests.replication.controller_pointer import ControllerPointer
from tests.replication.leading import NODE, Host

COUNT, AT_ONCE = 23, 5
REPLICAS = 32
LAG_MS = 1000
IMAGE = PartitionImage(leader=NODE, leader_epoch=0, partition_epoch=0, replicas=(NODE, 2), isr=(NODE, 2))


class Controller:
    """Records its requests, and refuses the first ones with these errors."""

    def __init__(self, errors: list[ErrorCode]) -> None:
        self.errors = errors
        self._left = COUNT + AT_ONCE * len(errors)
        self.asked: list[list[int]] = []
        self.is_done = asyncio.Event()

    async def answer(self, name: str, request: Request) -> Response:
        assert name == "AlterPartition"
        rows = [(topic.topic_id, each) for topic in request.topics for each in topic.partitions]
        self.asked.append([each.partition_index for _, each in rows])
        await asyncio.sleep(0)
        self._left -= len(rows)
        if self._left <= 0:
            self.is_done.set()
        if self.errors:
            return Response(error_code=self.errors.pop(0))
        taken = [
            PartitionDataReply(partition_index=each.partition_index, partition_epoch=each.partition_epoch + 1)
            for _, each in rows
        ]
        return Response(topics=[TopicDataReply(topic_id=rows[0][0], partitions=taken)])


def leading_many(world: RealWorld, root: Path, now: list[int], propose: Callable[[Partition], None]) -> Host:
    """Partitions that this node leads, with a follower that never fetches."""
    hosting = Host(ReplicaRules(NODE, lag_max_ms=LAG_MS, now_ms=lambda: now[0]), propose)
    for index in range(COUNT):
        log = Log.open(world, str(root / f"t-{index}"), "t", index, LogSettings(), clean=False)
        partition = hosting.host("t", bytes(15) + b"t", index, log)
        partition.become(IMAGE)
    return hosting


@pytest.mark.parametrize("errors", [[], [ErrorCode.STALE_BROKER_EPOCH]], ids=["taken", "refused once"])
def test_all_proposals_are_sent_in_bounded_requests(
    errors: list[ErrorCode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proposals are sent in order, and none is sent twice. The proposals of a refused request are sent again after the
    others."""
    monkeypatch.setattr(isr_proposals, "AT_ONCE_MAX", AT_ONCE, raising=False)
    monkeypatch.setattr(isr_proposals, "RETRY_MS", 0)
    world, now = RealWorld(1), [0]

    async def whole() -> list[list[int]]:
        pointer, controller = ControllerPointer(), Controller(list(errors))
        pointer.is_leader = True
        channel = ControllerChannel(Dialer(world.network), pointer, "tests")
        channel.answer_here(controller.answer)
        proposals = IsrProposals(channel, NODE, lambda: 1)
        hosting = leading_many(world, tmp_path, now, proposals.propose)
        now[0] += LAG_MS + 1
        for partition in hosting:
            partition.drop_lagging()
        await controller.is_done.wait()
        for _ in range(10):
            await asyncio.sleep(0)  # no more requests are sent
        proposals.close()
        channel.close()
        return controller.asked

    try:
        asked = asyncio.run(asyncio.wait_for(whole(), 20))
    finally:
        world.close()
    everything = list(range(COUNT))
    refused = everything[:AT_ONCE] if errors else []
    assert max(len(some) for some in asked) == AT_ONCE
    assert [index for some in asked for index in some] == everything + refused


def test_the_largest_request_is_within_the_limit_of_the_api_table() -> None:
    """There is one topic for each partition. The elements are the topics, the partitions and their replicas."""
    assert by_name["AlterPartition"].elements >= isr_proposals.AT_ONCE_MAX * (2 + REPLICAS)
