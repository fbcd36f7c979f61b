"""Tests DescribeConfigs over a socket, at every version and for every type of resource."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kpybroker.client.peer import Peer
from kpybroker.config.broker_keys import BROKER_KEYS
from kpybroker.config.delivery_keys import DELIVERY_KEYS
from kpybroker.config.describe import Source
from kpybroker.config.key import ConfigKey
from kpybroker.config.resource_type import ResourceType
from kpybroker.config.topic_keys import GROUP_KEYS, TOPIC_KEYS
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import create_topics, incremental_alter_configs
from kpybroker.wire.rpc import describe_configs as rpc
from tests.conftest import WithBroker
from tests.handlers.test_create_topics import topic
from tests.serving import Scenario, run_scenario

API = api_table.by_name["DescribeConfigs"]


def shown(keys: Mapping[str, ConfigKey], *, unstable: bool = False) -> set[str]:
    """The names of the settings that DescribeConfigs shows. A topic's own settings of kpybroker are shown if set."""
    own = {key.name for key in DELIVERY_KEYS}
    return {name for name, key in keys.items() if not key.internal and (unstable or not key.unstable)} - own


def of(kind: int, name: str, *keys: str) -> rpc.DescribeConfigsResource:
    return rpc.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) if keys else None
    )


def test_every_version_returns_every_setting(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, _node: Node) -> None:
        await peer.ask("CreateTopics", create_topics.Request(topics=[topic("a", retention_ms="5")]))
        asked = [of(ResourceType.TOPIC, "a"), of(ResourceType.BROKER, "1"), of(ResourceType.BROKER, "")]
        for version in range(API.min, API.max + 1):
            reply = await peer.ask("DescribeConfigs", rpc.Request(resources=asked), version=version)
            of_topic, of_broker, of_all = reply.results
            assert not any(result.error_code for result in reply.results)
            assert {c.name for c in of_topic.configs} == shown(TOPIC_KEYS)
            assert {c.name for c in of_broker.configs} == shown(BROKER_KEYS)
            assert [c.name for c in of_all.configs] == ["min.insync.replicas"], (
                "a setting that elections depend on belongs to the cluster"
            )
            (retention,) = (c for c in of_topic.configs if c.name == "retention.ms")
            assert (retention.value, retention.read_only, retention.is_sensitive) == ("5", False, False)
            assert retention.config_source == Source.DYNAMIC_TOPIC_CONFIG
            assert retention.synonyms == []
            assert not retention.documentation
            if version >= 3:
                assert retention.config_type == 5

    with_broker(scenario)


def test_settings_of_unstable_features_are_shown_and_changed_only_if_these_are_enabled(
    with_broker: WithBroker, tmp_path: Path
) -> None:
    tables = {ResourceType.TOPIC: TOPIC_KEYS, ResourceType.BROKER: BROKER_KEYS, ResourceType.GROUP: GROUP_KEYS}
    names = {ResourceType.TOPIC: "a", ResourceType.BROKER: "1", ResourceType.GROUP: "g"}

    async def refused(peer: Peer) -> list[int]:
        asked = [
            incremental_alter_configs.AlterConfigsResource(
                resource_type=kind,
                resource_name=names[kind],
                configs=[
                    incremental_alter_configs.AlterableConfig(name=name, config_operation=0, value=key.default)
                    for name, key in tables[kind].items()
                    if key.unstable
                ],
            )
            for kind in (ResourceType.TOPIC, ResourceType.GROUP)
        ]
        told = await peer.ask("IncrementalAlterConfigs", incremental_alter_configs.Request(resources=asked))
        return [row.error_code for row in told.responses]

    def scenario(*, unstable: bool) -> Scenario:
        async def run(peer: Peer, _node: Node) -> None:
            await peer.ask("CreateTopics", create_topics.Request(topics=[topic("a")]))
            reply = await peer.ask("DescribeConfigs", rpc.Request(resources=[of(kind, names[kind]) for kind in names]))
            for kind, result in zip(names, reply.results, strict=True):
                assert {c.name for c in result.configs} == shown(tables[kind], unstable=unstable)
            assert await refused(peer) == ([0, 0] if unstable else [ErrorCode.INVALID_CONFIG] * 2)

        return run

    with_broker(scenario(unstable=False))
    run_scenario(tmp_path / "other", scenario(unstable=True), {"unstable.feature.versions.enable": "true"})


def test_synonyms_documentation_and_single_settings_on_request(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, _node: Node) -> None:
        asked = rpc.Request(
            resources=[of(ResourceType.BROKER, "1", "log.retention.ms", "kpybroker.fsync")],
            include_synonyms=True,
            include_documentation=True,
        )
        (result,) = (await peer.ask("DescribeConfigs", asked)).results
        own, retention = sorted(result.configs, key=lambda config: config.name)
        assert [(s.name, s.value, s.source) for s in retention.synonyms] == [
            ("log.retention.ms", "5000", Source.STATIC_BROKER_CONFIG),
            ("log.retention.hours", "168", Source.DEFAULT_CONFIG),
        ]
        assert "page-cache" in own.documentation

    with_broker(scenario, {"log.retention.ms": "5000"})


DESCRIBED = [
    (ResourceType.TOPIC, "nosuch", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (ResourceType.TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
    (ResourceType.BROKER, "7", ErrorCode.INVALID_REQUEST),
    (ResourceType.BROKER, "x", ErrorCode.INVALID_REQUEST),
    (ResourceType.BROKER_LOGGER, "", ErrorCode.INVALID_REQUEST),
    (ResourceType.BROKER_LOGGER, "1", ErrorCode.NONE),
    (ResourceType.CLIENT_METRICS, "", ErrorCode.INVALID_REQUEST),
    (ResourceType.CLIENT_METRICS, "any", ErrorCode.NONE),
    (ResourceType.GROUP, "", ErrorCode.INVALID_REQUEST),
    (ResourceType.GROUP, "any", ErrorCode.NONE),
    (99, "x", ErrorCode.INVALID_REQUEST),
]


def test_which_resources_can_be_described(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, _node: Node) -> None:
        asked = [of(kind, name) for kind, name, _ in DESCRIBED]
        results = (await peer.ask("DescribeConfigs", rpc.Request(resources=asked))).results
        assert [(r.resource_type, r.resource_name, r.error_code) for r in results] == DESCRIBED
        for result in results:
            assert bool(result.configs) == (result.error_code == ErrorCode.NONE)

    with_broker(scenario)
