"""Tests AlterConfigs over a socket, at every version."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import alter_configs as rpc
from kpybroker.wire.rpc import create_topics
from tests.conftest import WithBroker
from tests.handlers.test_create_topics import topic

API = api_table.by_name["AlterConfigs"]


def replace(kind: int, name: str, **configs: str) -> rpc.AlterConfigsResource:
    settings = [rpc.AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    return rpc.AlterConfigsResource(resource_type=kind, resource_name=name, configs=settings)


def test_every_version_replaces_the_settings_of_a_live_log(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for version in range(API.min, API.max + 1):
            name = f"v{version}"
            await peer.ask("CreateTopics", create_topics.Request(topics=[topic(name, segment_ms="9")]))
            asked = rpc.Request(
                resources=[
                    replace(ResourceType.BROKER, "7", log_retention_ms="5"),
                    replace(ResourceType.TOPIC, name, retention_ms=str(1000 + version)),
                    replace(ResourceType.BROKER_LOGGER, "1", root="INFO"),
                    replace(ResourceType.TOPIC, "nosuch"),
                ]
            )
            reply = await peer.ask("AlterConfigs", asked, version=version)
            assert [told.error_code for told in reply.responses] == [
                ErrorCode.INVALID_REQUEST,
                ErrorCode.NONE,
                ErrorCode.INVALID_REQUEST,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ]
            assert [told.resource_name for told in reply.responses] == ["7", name, "1", "nosuch"]
            settings = node.broker.replication.hosting.leads(name, 0).log.settings
            assert (settings.retention_ms, settings.segment_ms) == (1000 + version, 604_800_000)

    with_broker(scenario)


def test_validating_changes_nothing(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        before = node.broker.metadata.image.configs
        whole = replace(ResourceType.BROKER, "", log_retention_ms="5", min_insync_replicas="1")
        (told,) = (await peer.ask("AlterConfigs", rpc.Request(resources=[whole], validate_only=True))).responses
        assert told.error_code == 0
        assert node.broker.metadata.image.configs == before
        part = rpc.Request(resources=[replace(ResourceType.BROKER, "", log_retention_ms="5")])
        (told,) = (await peer.ask("AlterConfigs", part)).responses
        assert told.error_code == ErrorCode.INVALID_CONFIG, (
            "it would reset min.insync.replicas, which elections need, as in Kafka"
        )

    with_broker(scenario)
