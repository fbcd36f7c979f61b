"""Tests ControllerRegistration over a socket, and the registration that a controller itself sends."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from kpybroker.broker.controller_registration import ControllerRegistration
from kpybroker.client.peer import Peer
from kpybroker.config import parse_config
from kpybroker.controller.commands import FeatureUpdate, RegisterController, UpdateFeatures, UpgradeType
from kpybroker.controller.features import SUPPORTED_FEATURES
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import TRANSACTION_FEATURE
from kpybroker.server.node import Node
from kpybroker.wire.rpc import controller_registration as rpc
from tests.conftest import WithBroker
from tests.controller.stage import Stage
from tests.handlers.strangers import inner

LEVELS = tuple((name, low, high) for name, (low, high) in SUPPORTED_FEATURES.items())


def asked(incarnation: int = 1) -> rpc.Request:
    return rpc.Request(
        controller_id=9,
        incarnation_id=bytes([incarnation]) * 16,
        listeners=[rpc.Listener(name="CONTROLLER", host="somewhere", port=9093, security_protocol=1)],
        features=[
            rpc.Feature(name=name, min_supported_version=low, max_supported_version=high) for name, low, high in LEVELS
        ],
    )


def test_the_last_registration_is_in_the_metadata_once(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        metadata = node.broker.metadata
        async with inner(node) as peer:
            assert not metadata.image.controllers
            await peer.ask("ControllerRegistration", asked(1))
            while node.broker.node_id not in metadata.image.controllers:  # as others are registered, it registers too
                await asyncio.sleep(0.01)
            for incarnation, is_new in ((1, False), (2, True)):
                before = metadata.image.offset
                told = await peer.ask("ControllerRegistration", asked(incarnation))
                assert (told.error_code, told.error_message) == (0, "")
                assert metadata.image.offset == before + is_new
                record = metadata.image.controllers[9]
                assert record.incarnation_id == bytes([incarnation]) * 16
                (at,) = record.end_points
                assert (at.name, at.host, at.port, at.security_protocol) == ("CONTROLLER", "somewhere", 9093, 1)
                levels = [(f.name, f.min_supported_version, f.max_supported_version) for f in record.features]
                assert levels == list(LEVELS)

    with_broker(scenario)


def test_no_level_is_finalized_that_a_controller_does_not_support() -> None:
    stage = Stage()
    low = tuple((name, 0, 1) if name == TRANSACTION_FEATURE else (name, *levels) for name, *levels in LEVELS)
    stage.ask(RegisterController(9, bytes(16), features=low))
    wanted = UpdateFeatures((FeatureUpdate(TRANSACTION_FEATURE, 2, UpgradeType.UPGRADE),))
    with pytest.raises(KafkaError, match="controller 9 supports versions 0 to 1") as refused:
        stage.ask(wanted)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    stage.ask(RegisterController(9, bytes([1]) * 16, features=LEVELS))
    stage.ask(wanted)
    assert stage.state.features[TRANSACTION_FEATURE] == 2


def test_a_controller_registers_once_others_have() -> None:
    """It registers once, and tries again if no controller responded."""
    config = parse_config(
        {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": "1@127.0.0.1:9093,2@127.0.0.1:9094",
            "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        }
    )
    registered: set[int] = set()
    requests: list[rpc.Request] = []

    async def ask(name: str, request: Any, _timeout_ms: int) -> rpc.Response:
        assert name == "ControllerRegistration"
        requests.append(request)
        if len(requests) == 1:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        return rpc.Response()

    async def scenario() -> None:
        registration = ControllerRegistration(config, Random(1), SUPPORTED_FEATURES, ask, lambda: registered)
        running = asyncio.ensure_future(registration.run())
        registration.look_again()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not requests
        registered.add(2)
        registration.look_again()
        await running

    asyncio.run(scenario())
    first, second = requests
    assert first == second
    (at,) = first.listeners
    assert (first.controller_id, at.name, at.host, at.port) == (1, "CONTROLLER", "127.0.0.1", 9093)
    assert [(f.name, f.min_supported_version, f.max_supported_version) for f in first.features] == list(LEVELS)


@pytest.mark.parametrize(
    ("protocol", "code"), [("PLAINTEXT", 0), ("SSL", 1), ("SASL_PLAINTEXT", 2), ("SASL_SSL", 3)], ids=str
)
def test_the_registration_has_the_protocol_of_each_controller_listener(protocol: str, code: int) -> None:
    """The codes are Apache Kafka's."""
    config = parse_config(
        {
            "process.roles": "controller",
            "node.id": "1",
            "controller.quorum.voters": "1@127.0.0.1:9093",
            "controller.listener.names": "FIRST,SECOND",
            "listeners": "FIRST://127.0.0.1:9093,SECOND://127.0.0.1:9094",
            "listener.security.protocol.map": f"FIRST:PLAINTEXT,SECOND:{protocol}",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        }
    )
    requests: list[rpc.Request] = []

    async def ask(_name: str, request: Any, _timeout_ms: int) -> rpc.Response:
        requests.append(request)
        return rpc.Response()

    asyncio.run(ControllerRegistration(config, Random(1), SUPPORTED_FEATURES, ask, lambda: {2}).run())
    (told,) = requests
    assert [(at.name, at.port, at.security_protocol) for at in told.listeners] == [
        ("FIRST", 9093, 0),
        ("SECOND", 9094, code),
    ]
