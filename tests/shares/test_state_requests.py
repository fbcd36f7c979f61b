"""Tests requests to share coordinators on another broker: one request for many share partitions, each with a result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kpybroker.client.broker_connections import BrokerConnections
from kpybroker.client.dialer import broker_dialer
from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.server.node import Node
from kpybroker.shares.keys import ShareKey
from kpybroker.shares.state_requests import BATCHES_MAX, INITIALIZE, READ, ROWS_MAX, WRITE, StateRequests
from kpybroker.wire.rpc import initialize_share_group_state, read_share_group_state, write_share_group_state
from tests.handlers.share_states import coordinated
from tests.handlers.sharing import topic
from tests.serving import run_scenario

TIMEOUT_MS = 20_000
PARTITIONS = ROWS_MAX + 20


class Counted(BrokerConnections):
    """Connections that record the number of rows of each request."""

    sizes: list[int]

    async def ask(self, node_id: int, name: str, request: Any, timeout_ms: int) -> Any:
        self.sizes.append(sum(len(each.partitions) for each in request.topics))
        return await super().ask(node_id, name, request, timeout_ms)


class Asking:
    """Requests to a node, as another broker sends them."""

    def __init__(self, node: Node, topic_id: bytes) -> None:
        host, _, port = node.bootstrap.rpartition(":")
        broker = node.broker
        dialer = broker_dialer(broker.world, lambda: broker.config)
        self.connections = Counted(dialer, "test", lambda _: (host, int(port)))
        self.connections.sizes = []
        self.requests, self._topic_id = StateRequests(self.connections), topic_id

    def key(self, index: int) -> ShareKey:
        return ShareKey("g", self._topic_id, index)

    async def initialize(self, index: int, epoch: int = 1) -> Any:
        row = initialize_share_group_state.PartitionData(partition=index, state_epoch=epoch, start_offset=index)
        return await self.requests.ask(1, INITIALIZE, self.key(index), row, TIMEOUT_MS)

    async def read(self, index: int) -> Any:
        row = read_share_group_state.PartitionData(partition=index, leader_epoch=0)
        return await self.requests.ask(1, READ, self.key(index), row, TIMEOUT_MS)

    async def write(self, index: int, batches: int) -> Any:
        rpc = write_share_group_state
        row = rpc.PartitionData(
            partition=index,
            state_epoch=1,
            leader_epoch=0,
            start_offset=index,
            state_batches=[
                rpc.StateBatch(first_offset=at, last_offset=at, delivery_state=2, delivery_count=1)
                for at in range(index, index + 2 * batches, 2)
            ],
        )
        return await self.requests.ask(1, WRITE, self.key(index), row, TIMEOUT_MS)

    def close(self) -> None:
        self.requests.close()
        self.connections.close()


def run(tmp_path: Path, scene: Callable[[Asking, Node], Awaitable[None]]) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await topic(peer, partitions=PARTITIONS, batches=0)
        await coordinated(peer)
        asking = Asking(node, topic_id)
        await scene(asking, node)
        asking.close()

    run_scenario(tmp_path, scenario, {"share.coordinator.state.topic.num.partitions": "3"})


def test_what_is_asked_together_is_one_request_with_an_answer_for_each(tmp_path: Path) -> None:
    async def scene(asking: Asking, node: Node) -> None:
        await asyncio.gather(*(asking.initialize(index) for index in range(PARTITIONS)))
        assert asking.connections.sizes == [ROWS_MAX, 20]
        told = await asyncio.gather(*(asking.read(index) for index in range(PARTITIONS)))
        assert [(row.partition, row.start_offset) for row in told] == [(index, index) for index in range(PARTITIONS)]

    run(tmp_path, scene)


def test_each_row_has_its_own_refusal(tmp_path: Path) -> None:
    async def scene(asking: Asking, node: Node) -> None:
        await asking.initialize(0, epoch=5)
        again, new, unknown = await asyncio.gather(
            asking.initialize(0, epoch=4), asking.initialize(1), asking.initialize(PARTITIONS), return_exceptions=True
        )
        assert isinstance(again, KafkaError)
        assert isinstance(unknown, KafkaError)
        assert (again.code, new.partition) == (ErrorCode.FENCED_STATE_EPOCH, 1)
        assert unknown.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(tmp_path, scene)


def test_a_share_partition_that_is_asked_twice_gets_its_answers_in_order(tmp_path: Path) -> None:
    async def scene(asking: Asking, node: Node) -> None:
        told = await asyncio.gather(*(asking.initialize(0, epoch) for epoch in (3, 4, 2)), return_exceptions=True)
        assert [isinstance(each, KafkaError) for each in told] == [False, False, True]

    run(tmp_path, scene)


@pytest.mark.slow
def test_many_batches_are_spread_over_requests(tmp_path: Path) -> None:
    async def scene(asking: Asking, node: Node) -> None:
        await asyncio.gather(*(asking.initialize(index) for index in range(7)))
        asking.connections.sizes.clear()
        await asyncio.gather(*(asking.write(index, 10_000) for index in range(7)))
        assert asking.connections.sizes == [BATCHES_MAX // 10_000, 2]
        assert len((await asking.read(6)).state_batches) == 10_000

    run(tmp_path, scene)


def test_a_broker_that_does_not_answer(tmp_path: Path) -> None:
    async def scene(asking: Asking, node: Node) -> None:
        asking.connections.close()
        told = await asyncio.gather(asking.read(0), asking.read(1), return_exceptions=True)
        assert [each.code for each in told if isinstance(each, KafkaError)] == [ErrorCode.NETWORK_EXCEPTION] * 2

    run(tmp_path, scene)
