"""If the file system ignores the case of names, topics whose names differ only in case are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kpybroker.client.peer import Peer
from kpybroker.config import parse_config
from kpybroker.errors import Damage, ErrorCode
from kpybroker.server.node import Node
from kpybroker.storage.dirs.directory import folds_case
from kpybroker.wire.rpc import create_topics, delete_topics, metadata
from kpybroker.world.real import RealWorld
from tests.asking import make, put
from tests.serving import SMALL, dialled
from tests.storage.folding import FoldingWorld


@asynccontextmanager
async def serving(world: RealWorld, directory: Path) -> AsyncIterator[tuple[Peer, Node]]:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory), **SMALL}
    node = await Node.start(world, parse_config(settings))
    try:
        async with dialled(node) as peer:
            yield peer, node
    finally:
        await node.stop()
        world.close()


async def asked_for(peer: Peer, *topics: str) -> list[tuple[ErrorCode, str | None]]:
    wanted = [create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in topics]
    told = await peer.ask("CreateTopics", create_topics.Request(topics=wanted, timeout_ms=5000))
    return [(ErrorCode(each.error_code), each.error_message) for each in told.topics]


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


def test_a_topic_is_not_put_into_the_directory_of_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(FoldingWorld(7), tmp_path) as (peer, _):
            await make(peer, "Orders")
            await put(peer, "Orders", b"1")
            ((code, why),) = await asked_for(peer, "orders")
            assert code == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert why is not None
            assert "collides with existing topic: Orders" in why
            assert "only in case" in why
            wanted = metadata.Request(
                topics=[metadata.MetadataRequestTopic(name="ORDERS")], allow_auto_topic_creation=True
            )
            assert (await peer.ask("Metadata", wanted, version=9)).topics[0].error_code != ErrorCode.NONE
            twins = await asked_for(peer, "One", "one", "__Consumer_Offsets", "__CLUSTER_METADATA")
            assert sorted(code.name for code, _ in twins) == ["INVALID_TOPIC_EXCEPTION"] * 3 + ["NONE"]
            await make(peer, "__consumer_offsets")
        async with serving(FoldingWorld(7), tmp_path) as (peer, _):
            assert (await asked_for(peer, "orders"))[0][0] == ErrorCode.INVALID_TOPIC_EXCEPTION, "after a restart, too"
            gone = delete_topics.Request(topics=[delete_topics.DeleteTopicState(name="Orders")], timeout_ms=5000)
            await peer.ask("DeleteTopics", gone)
            await make(peer, "orders")

    run(scenario())


def test_a_partition_created_elsewhere_stays_offline_if_its_directory_collides(tmp_path: Path) -> None:
    """The controller cannot detect the collision if its own file system is case-sensitive."""

    async def scenario() -> None:
        async with serving(FoldingWorld(7), tmp_path) as (peer, node):
            await make(peer, "Orders")
            with pytest.raises(Damage, match="orders-0 would be in the directory of Orders-0"):
                node.broker.storage.log_dirs.open_log(
                    "orders", bytes(16), 0, node.broker.config.log_settings({}), bytes(16)
                )

    run(scenario())


def test_elsewhere_case_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(RealWorld(7), tmp_path) as (peer, node):
            assert not folds_case(node.broker.world, str(tmp_path))
            told = await asked_for(peer, "Orders", "orders", "ORDERS", "__Consumer_Offsets")
            assert {code for code, _ in told} == {ErrorCode.NONE}

    run(scenario())
