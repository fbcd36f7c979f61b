"""Tests IncrementalAlterConfigs over a socket. Settings change while the broker runs, and are kept after a restart."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from kpybroker.client.peer import Peer
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.commands import AlterOp
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import create_topics
from kpybroker.wire.rpc import incremental_alter_configs as rpc
from tests.conftest import WithBroker
from tests.handlers.test_create_topics import topic
from tests.serving import dialled, serving

API = api_table.by_name["IncrementalAlterConfigs"]


def change(kind: int, resource: str, name: str, op: int = AlterOp.SET, value: str | None = None) -> rpc.Request:
    config = rpc.AlterableConfig(name=name, config_operation=op, value=value)
    resources = [rpc.AlterConfigsResource(resource_type=kind, resource_name=resource, configs=[config])]
    return rpc.Request(resources=resources)


async def code(peer: Peer, request: rpc.Request, version: int | None = None) -> int:
    (told,) = (await peer.ask("IncrementalAlterConfigs", request, version=version)).responses
    found: int = told.error_code
    return found


def test_every_version_changes_a_live_log(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await peer.ask("CreateTopics", create_topics.Request(topics=[topic("a", segment_ms="9")]))
        for version in range(API.min, API.max + 1):
            request = change(ResourceType.TOPIC, "a", "cleanup.policy", AlterOp.APPEND, "compact")
            assert await code(peer, request, version) == 0
            settings = node.broker.replication.hosting.leads("a", 0).log.settings
            assert settings.compacted
            assert settings.segment_ms == 9
            request = change(ResourceType.TOPIC, "a", "cleanup.policy", AlterOp.SUBTRACT, "compact")
            assert await code(peer, request, version) == 0
            assert not node.broker.replication.hosting.leads("a", 0).log.settings.compacted

    with_broker(scenario)


def test_settings_of_the_cluster_and_of_this_broker_reach_the_logs(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await peer.ask("CreateTopics", create_topics.Request(topics=[topic("a")]))

        def retention_ms() -> int:
            found: int = node.broker.replication.hosting.leads("a", 0).log.settings.retention_ms
            return found

        assert await code(peer, change(ResourceType.BROKER, "", "log.retention.ms", value="99")) == 0
        assert retention_ms() == 99
        assert await code(peer, change(ResourceType.BROKER, "1", "log.retention.ms", value="-5")) == 0
        assert retention_ms() == -1
        assert await code(peer, change(ResourceType.BROKER, "1", "log.retention.ms", AlterOp.DELETE)) == 0
        assert retention_ms() == 99
        assert await code(peer, change(ResourceType.BROKER, "7", "log.retention.ms", value="1")) != 0
        assert await code(peer, change(ResourceType.BROKER, "", "num.partitions", value="3")) != 0

    with_broker(scenario)


def test_levels_of_loggers(with_broker: WithBroker) -> None:
    name = "kpybroker.broker"

    async def scenario(peer: Peer, _node: Node) -> None:
        logger = logging.getLogger(name)
        before = logger.level
        assert await code(peer, change(ResourceType.BROKER_LOGGER, "1", name, value="DEBUG")) == 0
        assert logger.level == logging.DEBUG
        assert await code(peer, change(ResourceType.BROKER_LOGGER, "1", name, AlterOp.DELETE)) == 0
        assert logger.level == logging.NOTSET
        logger.setLevel(before)
        for request in (
            change(ResourceType.BROKER_LOGGER, "1", name, value="LOUD"),
            change(ResourceType.BROKER_LOGGER, "1", "no.such.logger", value="INFO"),
        ):
            assert await code(peer, request) == ErrorCode.INVALID_CONFIG
        assert await code(peer, change(ResourceType.BROKER_LOGGER, "2", name, value="INFO")) != 0

    with_broker(scenario)


def test_changed_settings_survive_a_restart(tmp_path: Path) -> None:
    async def whole() -> None:
        async with serving(tmp_path / "data") as node, dialled(node) as peer:
            await peer.ask("CreateTopics", create_topics.Request(topics=[topic("a")]))
            assert await code(peer, change(ResourceType.TOPIC, "a", "retention.ms", value="4242")) == 0
            assert await code(peer, change(ResourceType.BROKER, "", "log.roll.ms", value="5252")) == 0
        async with serving(tmp_path / "data") as node:
            settings = node.broker.replication.hosting.leads("a", 0).log.settings
            assert (settings.retention_ms, settings.segment_ms) == (4242, 5252)

    asyncio.run(asyncio.wait_for(whole(), 60))
