"""Tests UpdateFeatures over a socket, at every version."""

from __future__ import annotations

from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.election_rules import ELR_FEATURE
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import update_features as rpc
from tests.conftest import WithBroker

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
