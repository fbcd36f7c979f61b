"""The channel to the active controller, which may be on another node, may change, may not respond, or may not exist."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kpybroker.client.dialer import Dialer
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.handlers.describe_cluster import CONTROLLERS
from kpybroker.replication.node import controller_channel
from kpybroker.replication.node.controller_channel import ControllerChannel
from kpybroker.server.node import Node
from kpybroker.wire.rpc import describe_cluster
from tests.replication.controller_pointer import At, ControllerPointer, controller_of
from tests.serving import serving

Play = Callable[[Node, Node, ControllerPointer, ControllerChannel], Awaitable[None]]
PATIENCE_MS = 20_000


def play(root: Path, scene: Play) -> None:
    """Run a test with two clusters of one node each, and a channel that may point to either."""

    async def whole() -> None:
        async with serving(root / "a") as first, serving(root / "b") as second:
            pointer = ControllerPointer()
            channel = ControllerChannel(Dialer(first.broker.world.network), pointer, "tests")
            await scene(first, second, pointer, channel)
            channel.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


async def cluster_asked(channel: ControllerChannel, **facts: Any) -> str:
    """The id of the cluster of the controller that responds."""
    told = await channel.ask(
        "DescribeCluster", describe_cluster.Request(endpoint_type=CONTROLLERS), PATIENCE_MS, **facts
    )
    cluster_id: str = told.cluster_id
    return cluster_id


def test_the_channel_follows_the_controller(tmp_path: Path) -> None:
    async def scene(first: Node, second: Node, pointer: ControllerPointer, channel: ControllerChannel) -> None:
        for node in (first, second, first):
            pointer.to(await controller_of(node))
            assert await cluster_asked(channel) == node.broker.storage.cluster_id

    play(tmp_path, scene)


def test_without_a_majority_of_voters_a_request_fails_before_its_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_channel, "IN_VAIN_MS", 50)

    async def scene(first: Node, _: Node, pointer: ControllerPointer, channel: ControllerChannel) -> None:
        pointer.no_leader_reason, pointer.lacks_majority = "2 of 3 controllers are out of reach: 2, 3", True
        with pytest.raises(KafkaError, match=r"the quorum has no leader, 2 of 3 controllers are out of reach: 2, 3$"):
            await channel.ask("DescribeCluster", describe_cluster.Request(endpoint_type=CONTROLLERS), 3_600_000)
        monkeypatch.setattr(controller_channel, "IN_VAIN_MS", 3_600_000)
        asked = asyncio.ensure_future(cluster_asked(channel))
        await asyncio.sleep(0)
        pointer.to(await controller_of(first))
        assert await asked == first.broker.storage.cluster_id, "a controller that is elected in time responds"

    play(tmp_path, scene)


def test_a_request_waits_until_there_is_a_leader(tmp_path: Path) -> None:
    async def scene(first: Node, _: Node, pointer: ControllerPointer, channel: ControllerChannel) -> None:
        asked = [asyncio.ensure_future(cluster_asked(channel)) for _ in range(5)]
        for _ in range(3):
            await asyncio.sleep(0)
        assert not any(each.done() for each in asked)
        pointer.to(await controller_of(first))
        assert await asyncio.gather(*asked) == [first.broker.storage.cluster_id] * 5

    play(tmp_path, scene)


def test_a_request_without_a_leader_times_out(tmp_path: Path) -> None:
    async def scene(first: Node, _: Node, pointer: ControllerPointer, channel: ControllerChannel) -> None:
        for at in (None, At(9, "127.0.0.1", 1)):
            pointer.to(at)
            with pytest.raises(KafkaError) as refused:
                await channel.ask("DescribeCluster", describe_cluster.Request(endpoint_type=CONTROLLERS), 50)
            assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT

    play(tmp_path, scene)


def test_a_request_moves_from_a_silent_controller_to_the_next_leader(tmp_path: Path) -> None:
    async def scene(first: Node, _: Node, pointer: ControllerPointer, channel: ControllerChannel) -> None:
        network = first.broker.world.network
        silent = await network.listen(asyncio.Protocol, "127.0.0.1", 0)
        pointer.to(At(9, "127.0.0.1", silent.port))
        asked = asyncio.ensure_future(cluster_asked(channel, try_ms=100))
        await asyncio.sleep(0)
        pointer.to(await controller_of(first))
        assert await asked == first.broker.storage.cluster_id
        silent.close()

    play(tmp_path, scene)


def test_a_closed_connection_is_opened_again(tmp_path: Path) -> None:
    async def scene(first: Node, _: Node, pointer: ControllerPointer, channel: ControllerChannel) -> None:
        pointer.to(await controller_of(first))
        for _ in range(3):
            assert await cluster_asked(channel) == first.broker.storage.cluster_id
            for connection in first.server.connections():
                connection.abort()

    play(tmp_path, scene)


def test_the_controllers_own_node_opens_no_connection(tmp_path: Path) -> None:
    async def scene(first: Node, *_: Any) -> None:
        assert await cluster_asked(first.broker.membership.channel) == first.broker.storage.cluster_id
        assert not first.server.connections()

    play(tmp_path, scene)


def test_a_closed_channel_fails_its_requests(tmp_path: Path) -> None:
    async def scene(first: Node, _: Node, pointer: ControllerPointer, channel: ControllerChannel) -> None:
        asked = asyncio.ensure_future(cluster_asked(channel))
        await asyncio.sleep(0)
        channel.close()
        with pytest.raises(KafkaError):
            await asked

    play(tmp_path, scene)
