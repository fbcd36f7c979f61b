"""Tests CreateTopics over a socket, at every version."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.config.describe import Source
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import create_topics as rpc
from tests.conftest import WithBroker

API = api_table.by_name["CreateTopics"]


def topic(name: str, partitions: int = 1, **configs: str | None) -> rpc.CreatableTopic:
    settings = [rpc.CreatableTopicConfig(name=n.replace("_", "."), value=value) for n, value in configs.items()]
    return rpc.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=settings)


def test_every_version_creates_a_topic_that_is_served_at_once(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for version in range(API.min, API.max + 1):
            name = f"v{version}"
            asked = rpc.Request(topics=[topic(name, 2, retention_ms="77"), topic("no good")])
            reply = await peer.ask("CreateTopics", asked, version=version)
            made, refused = reply.topics
            assert (made.name, made.error_code, made.error_message) == (name, 0, None)
            assert (refused.error_code, refused.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, "no good")
            assert "no good" in refused.error_message
            assert node.broker.replication.hosting.leads(name, 1).log.settings.retention_ms == 77
            if version >= 5:
                assert (made.num_partitions, made.replication_factor) == (2, 1)
                told = {config.name: config for config in made.configs}
                assert (told["retention.ms"].value, told["retention.ms"].config_source) == (
                    "77",
                    Source.DYNAMIC_TOPIC_CONFIG,
                )
                assert all(config.config_source > 0 and not config.read_only for config in made.configs)
                assert refused.configs == []
            if version >= 7:
                assert made.topic_id == node.broker.metadata.image.topics[name].id

    with_broker(scenario)


def test_validating_creates_nothing_and_defaults_are_the_brokers(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        asked = rpc.Request(topics=[topic("a", -1)], validate_only=True)
        (told,) = (await peer.ask("CreateTopics", asked)).topics
        assert (told.error_code, told.num_partitions) == (0, 3)
        assert "a" not in node.broker.metadata.image.topics

    with_broker(scenario, {"num.partitions": "3"})


def test_repeated_names_and_requests_that_are_too_large(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, _node: Node) -> None:
        (told,) = (await peer.ask("CreateTopics", rpc.Request(topics=[topic("a"), topic("a")]))).topics
        assert (told.name, told.error_code) == ("a", ErrorCode.INVALID_REQUEST)
        (told,) = (await peer.ask("CreateTopics", rpc.Request(topics=[topic("a", 10_001)]))).topics
        assert told.error_code == ErrorCode.POLICY_VIOLATION

    with_broker(scenario)


def test_a_thousand_topics_at_once(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        names = [f"t{number}" for number in range(1000)]
        reply = await peer.ask("CreateTopics", rpc.Request(topics=[topic(name) for name in names]))
        assert [told.name for told in reply.topics] == names
        assert not any(told.error_code for told in reply.topics)
        assert all(node.broker.replication.hosting.find(name, 0) for name in names)

    with_broker(scenario)
