"""Tests ListConfigResources over a socket, at every version."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.rpc import create_topics
from kpybroker.wire.rpc import list_config_resources as rpc
from tests.conftest import WithBroker
from tests.handlers.test_create_topics import topic
from tests.handlers.test_incremental_alter_configs import change, code


def test_resources_with_settings_are_listed(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, _node: Node) -> None:
        await peer.ask("CreateTopics", create_topics.Request(topics=[topic("a")]))
        assert await code(peer, change(ResourceType.CLIENT_METRICS, "cm", "interval.ms", value="1000")) == 0
        assert await code(peer, change(ResourceType.GROUP, "g", "consumer.session.timeout.ms", value="46000")) == 0

        async def listed(version: int, *kinds: int) -> set[tuple[int, str]]:
            reply = await peer.ask("ListConfigResources", rpc.Request(resource_types=list(kinds)), version=version)
            assert reply.error_code == 0
            return {(found.resource_type, found.resource_name) for found in reply.config_resources}

        metrics = {(ResourceType.CLIENT_METRICS.value, "cm")}
        assert await listed(0) == metrics
        assert await listed(1, ResourceType.CLIENT_METRICS) == metrics
        assert await listed(1) == metrics | {
            (ResourceType.TOPIC.value, "a"),
            (ResourceType.BROKER.value, "1"),
            (ResourceType.BROKER_LOGGER.value, "1"),
            (ResourceType.GROUP.value, "g"),
        }
        reply = await peer.ask("ListConfigResources", rpc.Request(resource_types=[99]), version=1)
        assert (reply.error_code, reply.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])

    with_broker(scenario)
