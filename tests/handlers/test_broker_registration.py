"""Tests BrokerRegistration over a socket, at every version."""

from __future__ import annotations

from typing import Any

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.directory_ids import UNASSIGNED
from kpybroker.wire.rpc import broker_registration as rpc
from tests.conftest import WithBroker
from tests.handlers.strangers import Stranger, inner

API = api_table.by_name["BrokerRegistration"]


def test_every_version_that_can_name_directories_registers(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        async with inner(node) as peer:
            for version in range(API.min, API.max + 1):
                stranger = Stranger(peer, node.broker.storage.cluster_id, 10 + version)
                told = await peer.ask("BrokerRegistration", stranger.registration(), version=version)
                if version < 2:  # log_dirs exist since v2 (KIP-858), and metadata.version requires them
                    assert told.error_code == ErrorCode.INVALID_REGISTRATION
                    continue
                known = node.broker.metadata.image.brokers[stranger.node_id]
                assert (told.error_code, told.broker_epoch) == (0, known.epoch)
                assert known.fenced
                assert known.log_dirs == (bytes([stranger.node_id]) * 16,)

    with_broker(scenario)


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"cluster_id": "x" * 22}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"broker_id": -1}, ErrorCode.INVALID_REQUEST),
        ({"listeners": []}, ErrorCode.INVALID_REQUEST),
        ({"is_migrating_zk_broker": True}, ErrorCode.INVALID_REQUEST),
        ({"features": []}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": []}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [UNASSIGNED]}, ErrorCode.INVALID_REGISTRATION),
        (
            {"features": [rpc.Feature(name="metadata.version", min_supported_version=7, max_supported_version=29)]},
            ErrorCode.UNSUPPORTED_VERSION,
        ),
    ],
)
def test_a_broker_that_does_not_fit_is_refused(with_broker: WithBroker, facts: dict[str, Any], code: ErrorCode) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        async with inner(node) as peer:
            request = Stranger(peer, node.broker.storage.cluster_id, 2).registration(**facts)
            told = await peer.ask("BrokerRegistration", request)
            assert (told.error_code, told.broker_epoch) == (code, -1)
            assert list(node.broker.metadata.image.brokers) == [node.broker.node_id]

    with_broker(scenario)


def test_the_id_of_a_live_broker_is_not_given_to_another(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        async with inner(node) as peer:
            first, second = (Stranger(peer, node.broker.storage.cluster_id, 2, incarnation) for incarnation in (1, 2))
            assert await first.register() == 0
            assert not (await first.beat()).is_fenced
            assert await second.register() == ErrorCode.DUPLICATE_BROKER_REGISTRATION
            assert (await first.beat(want_shut_down=True)).should_shut_down
            assert await second.register() == 0

    with_broker(scenario)


def test_only_the_controllers_own_broker_may_use_its_id(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        async with inner(node) as peer:
            twin = Stranger(peer, node.broker.storage.cluster_id, node.broker.node_id)
            epoch = node.broker.metadata.image.brokers[node.broker.node_id].epoch
            assert await twin.register() == ErrorCode.DUPLICATE_BROKER_REGISTRATION
            assert node.broker.metadata.image.brokers[node.broker.node_id].epoch == epoch

    with_broker(scenario)
