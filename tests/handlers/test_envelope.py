"""Envelope over a socket: what is inside is answered as if it had come by itself."""

from __future__ import annotations

from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.api import by_name
from kpybroker.wire.codec.message import parse
from kpybroker.wire.frame import encode_request, parse_response_header
from kpybroker.wire.rpc import create_topics, envelope, metadata, unregister_broker
from tests.conftest import WithBroker
from tests.handlers.strangers import inner
from tests.handlers.test_create_topics import topic


def enveloped(name: str, version: int, request: Any, address: bytes = bytes([127, 0, 0, 1])) -> envelope.Request:
    frame = b"".join(encode_request(7, by_name[name], version, request, "inside"))[4:]
    return envelope.Request(request_data=frame, request_principal=None, client_host_address=address)


def opened(name: str, version: int, told: envelope.Response) -> Any:
    assert told.response_data is not None
    correlation_id, body_at = parse_response_header(told.response_data, by_name[name], version)
    assert correlation_id == 7
    return parse(by_name[name].response, version, told.response_data, body_at)


def test_every_version_inside_is_answered(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        api = by_name["CreateTopics"]
        async with inner(node) as peer:
            for version in range(api.min, api.max + 1):
                wanted = create_topics.Request(topics=[topic(f"t{version}"), topic("no good")])
                told = await peer.ask("Envelope", enveloped("CreateTopics", version, wanted), version=0)
                assert told.error_code == 0
                made, refused = opened("CreateTopics", version, told).topics
                assert (made.error_code, refused.error_code) == (0, ErrorCode.INVALID_TOPIC_EXCEPTION)
                assert f"t{version}" in node.broker.image.topics

    with_broker(scenario)


def test_a_refusal_is_the_one_insides(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        async with inner(node) as peer:
            wanted = unregister_broker.Request(broker_id=99)
            told = await peer.ask("Envelope", enveloped("UnregisterBroker", 0, wanted))
            assert told.error_code == 0
            assert opened("UnregisterBroker", 0, told).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED

    with_broker(scenario)


def test_what_is_not_forwarded_is_refused(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        async with inner(node) as peer:
            listed = unregister_broker.Request(broker_id=99)
            for request in (
                enveloped("Metadata", 12, metadata.Request(topics=None)),
                enveloped("UnregisterBroker", 0, listed, address=b"abc"),
            ):
                told = await peer.ask("Envelope", request)
                assert (told.error_code, told.response_data) == (ErrorCode.INVALID_REQUEST, None)

    with_broker(scenario)
