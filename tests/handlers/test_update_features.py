"""Tests UpdateFeatures over a socket, at every version, and its effect in the controller."""

from __future__ import annotations

from typing import Any

import pytest

from kpybroker.client.peer import Peer
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.commands import (
    AlterOp,
    ChangeConfigs,
    CreateTopics,
    FeatureUpdate,
    IncrementalAlterConfigs,
    NewTopic,
    RegisterBroker,
    UpdateFeatures,
)
from kpybroker.controller.election_rules import ELR_FEATURE
from kpybroker.controller.features import SUPPORTED_FEATURES
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import TRANSACTION_FEATURE
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import update_features as rpc
from tests.conftest import WithBroker
from tests.controller.stage import Stage

API = api_table.by_name["UpdateFeatures"]


def wanted(feature: str, level: int, **facts: Any) -> rpc.FeatureUpdateKey:
    return rpc.FeatureUpdateKey(feature=feature, max_version_level=level, **facts)


def test_every_version_raises_and_lowers_a_level(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for version in range(API.min, API.max + 1):
            down = {"allow_downgrade": True} if version == 0 else {"upgrade_type": 2}
            for facts, level in (({}, 1), (down, 0)):
                request = rpc.Request(feature_updates=[wanted(ELR_FEATURE, level, **facts)])
                told = await peer.ask("UpdateFeatures", request, version=version)
                assert told.error_code == 0
                assert [each.feature for each in told.results] == ([ELR_FEATURE] if version < 2 else [])
                assert node.broker.metadata.image.features.get(ELR_FEATURE, 0) == level
        everywhere = node.broker.metadata.image.config(ResourceType.BROKER, "")
        assert everywhere["min.insync.replicas"] == "1", "it decides elections, and must be the same on all nodes"

    with_broker(scenario)


def test_refusals_change_nothing(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        before = dict(node.broker.metadata.image.features)
        for updates, code in (
            ([wanted("metadata.version", 31)], ErrorCode.INVALID_UPDATE_VERSION),
            ([wanted("metadata.version", 0, upgrade_type=2)], ErrorCode.INVALID_UPDATE_VERSION),
            ([wanted("nosuch.version", 1)], ErrorCode.INVALID_UPDATE_VERSION),
            ([wanted("kraft.version", 2)], ErrorCode.INVALID_UPDATE_VERSION),
            ([wanted("kraft.version", 0, upgrade_type=2)], ErrorCode.INVALID_UPDATE_VERSION),
            ([wanted("kraft.version", 1, upgrade_type=9)], ErrorCode.INVALID_UPDATE_VERSION),
            ([wanted(ELR_FEATURE, 1, upgrade_type=9)], ErrorCode.INVALID_UPDATE_VERSION),
            ([wanted(ELR_FEATURE, 1), wanted("nosuch.version", 1)], ErrorCode.INVALID_UPDATE_VERSION),
            ([wanted(ELR_FEATURE, 1), wanted(ELR_FEATURE, 0)], ErrorCode.INVALID_REQUEST),
        ):
            told = await peer.ask("UpdateFeatures", rpc.Request(feature_updates=updates))
            assert told.error_code == code
            assert told.error_message
        tried = rpc.Request(feature_updates=[wanted(ELR_FEATURE, 1)], validate_only=True)
        assert (await peer.ask("UpdateFeatures", tried)).error_code == 0
        assert dict(node.broker.metadata.image.features) == before

    with_broker(scenario)


def test_no_level_is_finalized_that_a_broker_does_not_support() -> None:
    """This applies to every registered broker, also to one that is fenced."""
    stage = Stage(brokers=1)

    def register(incarnation: int, highest: int) -> None:
        levels = {**SUPPORTED_FEATURES, TRANSACTION_FEATURE: (0, highest)}
        features = tuple((name, *each) for name, each in levels.items())
        stage.ask(RegisterBroker(2, bytes([incarnation]) * 16, (), features, log_dirs=(b"d" * 16,)))

    register(1, highest=1)
    higher = UpdateFeatures((FeatureUpdate(TRANSACTION_FEATURE, 2),))
    with pytest.raises(KafkaError, match=r"broker 2 supports versions 0 to 1\.$") as refused:
        stage.ask(higher)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    stage.ask(UpdateFeatures((FeatureUpdate(TRANSACTION_FEATURE, 1),)))
    assert stage.state.features[TRANSACTION_FEATURE] == 1
    register(2, highest=2)
    stage.ask(higher)
    assert stage.state.features[TRANSACTION_FEATURE] == 2


def test_with_eligible_leader_replicas_no_broker_has_its_own_min_insync_replicas() -> None:
    """Elections depend on it. The value for all brokers and all other settings remain, also those of topics."""
    stage = Stage(brokers=2)
    own = {"min.insync.replicas": "2", "log.cleaner.threads": "2"}
    stage.ask(CreateTopics((NewTopic("t", 1, 1),)))
    for kind, name, settings in (
        (ResourceType.BROKER, "", {"min.insync.replicas": "3"}),
        (ResourceType.BROKER, "1", own),
        (ResourceType.BROKER, "2", {"min.insync.replicas": "1"}),
        (ResourceType.TOPIC, "t", {"min.insync.replicas": "2"}),
    ):
        changes = tuple((key, AlterOp.SET, value) for key, value in settings.items())
        assert stage.code(IncrementalAlterConfigs((ChangeConfigs(kind, name, changes),)))[0] is ErrorCode.NONE
    assert stage.state.config(ResourceType.BROKER, "1") == own
    stage.ask(UpdateFeatures((FeatureUpdate(ELR_FEATURE, 1),)))
    assert stage.state.config(ResourceType.BROKER, "1") == {"log.cleaner.threads": "2"}
    assert not stage.state.config(ResourceType.BROKER, "2")
    assert stage.state.config(ResourceType.BROKER, "") == {"min.insync.replicas": "3"}
    assert stage.state.config(ResourceType.TOPIC, "t") == {"min.insync.replicas": "2"}
    assert stage.replayed() == stage.state
