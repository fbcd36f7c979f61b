"""Tests ConsumerGroupHeartbeat over a socket, at every version."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import incremental_alter_configs, update_features
from tests.conftest import WithBroker
from tests.handlers.consuming import AT_ONCE, beat, joined, partitions
from tests.handlers.grouping import coordinator

API = api_table.by_name["ConsumerGroupHeartbeat"]


def test_every_version_joins_stays_and_leaves(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        assert (await joined(peer, "g", "m")).error_code == ErrorCode.NOT_COORDINATOR
        await coordinator(peer, "t")
        for version in range(API.min, API.max + 1):
            group = f"g{version}"
            first = await joined(peer, group, "m", version=version)
            assert (first.error_code, first.member_id, partitions(first)) == (0, "m", [0, 1])
            again = await beat(peer, group, "m", first.member_epoch, version=version)
            assert (again.error_code, partitions(again)) == (0, None)
            wrong = await beat(peer, group, "m", first.member_epoch + 1, version=version)
            assert (wrong.error_code, wrong.member_id) == (ErrorCode.FENCED_MEMBER_EPOCH, None)
            assert "greater" in wrong.error_message
            left = await beat(peer, group, "m", -1, version=version)
            assert (left.error_code, left.member_epoch) == (0, -1)
            gone = await beat(peer, group, "m", first.member_epoch, version=version)
            assert gone.error_code == ErrorCode.UNKNOWN_MEMBER_ID

    with_broker(scenario, AT_ONCE)


def test_refusals_that_quote_long_names_are_answered(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t")
        assert (await joined(peer, "g", "m")).error_code == 0
        wrong = await beat(peer, "g", "\u20ac" * 10_922, 1)
        assert wrong.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert wrong.error_message.endswith("...")

    with_broker(scenario, AT_ONCE)


def test_only_version_0_assigns_a_member_id(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t")
        given = await joined(peer, "g", "", version=0)
        assert given.error_code == 0
        assert len(given.member_id) == 36
        assert (await joined(peer, "g", "", version=1)).error_code == ErrorCode.INVALID_REQUEST
        assert (await beat(peer, "", "m", 1)).error_code == ErrorCode.INVALID_REQUEST

    with_broker(scenario, AT_ONCE)


def test_changed_group_settings_arrive_with_the_next_heartbeat(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t")
        assert (await joined(peer, "g", "m")).heartbeat_interval_ms == 5_000
        setting = incremental_alter_configs.AlterableConfig(
            name="consumer.heartbeat.interval.ms", config_operation=0, value="7000"
        )
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=ResourceType.GROUP, resource_name="g", configs=[setting]
        )
        await peer.ask("IncrementalAlterConfigs", incremental_alter_configs.Request(resources=[resource]))
        assert (await joined(peer, "g", "m")).heartbeat_interval_ms == 7_000
        assert (await joined(peer, "h", "m")).heartbeat_interval_ms == 5_000

    with_broker(scenario, AT_ONCE)


def test_without_the_feature_the_protocol_is_not_served(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t")
        off = update_features.FeatureUpdateKey(feature="group.version", max_version_level=0, upgrade_type=2)
        assert (await peer.ask("UpdateFeatures", update_features.Request(feature_updates=[off]))).error_code == 0
        assert (await joined(peer, "g", "m")).error_code == ErrorCode.UNSUPPORTED_VERSION

    with_broker(scenario)


def test_a_broker_may_disable_the_protocol(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t")
        assert (await joined(peer, "g", "m")).error_code == ErrorCode.UNSUPPORTED_VERSION

    with_broker(scenario, {"group.coordinator.rebalance.protocols": "classic"})
