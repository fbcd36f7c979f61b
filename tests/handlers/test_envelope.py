"""Tests Envelope over a socket. The response is the same as if the enclosed request had been sent directly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import booleans, builds, just, text

from kpybroker.broker.envelopes import forwarded
from kpybroker.call import Call
from kpybroker.client.dialer import Dialer
from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.handlers import refused
from kpybroker.replication.node.controller_channel import ControllerChannel
from kpybroker.security.principal import Principal, decode_principal, encode_principal
from kpybroker.server.node import Node
from kpybroker.wire.api import API, Api, RunsOn, by_name
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.codec.layout import layout
from kpybroker.wire.frame import encode_request, parse_response_header
from kpybroker.wire.rpc import create_topics, envelope, metadata, unregister_broker
from tests.conftest import WithBroker
from tests.handlers.acl_setting import BOB, CREATE, SETTINGS, create, creation
from tests.handlers.strangers import inner
from tests.handlers.test_create_topics import topic
from tests.replication.controller_pointer import ControllerPointer, controller_of
from tests.server.many_elements import arrays_of, request_with_many

ON_CONTROLLER = [api for api in API if api.runs_on is RunsOn.CONTROLLER]
"""APIs that are forwarded, and those that brokers send to the controller themselves."""


ALICE = bytes.fromhex("0000 05 55736572 06 616c696365 00 00")
"""`User:alice` as Apache Kafka 4.3.1 writes it: version, type, name, not by token, no tags."""


def enveloped(
    name: str,
    version: int,
    request: Any,
    address: bytes = bytes([127, 0, 0, 1]),
    principal: bytes | None = ALICE,
) -> envelope.Request:
    frame = b"".join(encode_request(7, by_name[name], version, request, "inside"))[4:]
    return envelope.Request(request_data=frame, request_principal=principal, client_host_address=address)


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
                assert f"t{version}" in node.broker.metadata.image.topics

    with_broker(scenario)


def test_a_refusal_of_the_inner_request_is_in_the_inner_response(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        async with inner(node) as peer:
            wanted = unregister_broker.Request(broker_id=99)
            told = await peer.ask("Envelope", enveloped("UnregisterBroker", 0, wanted))
            assert told.error_code == 0
            assert opened("UnregisterBroker", 0, told).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED

    with_broker(scenario)


def test_apis_that_are_not_forwarded_are_refused(with_broker: WithBroker) -> None:
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


@pytest.mark.parametrize("principal", [None, b"", ALICE[:-3], b"\0\7" + ALICE[2:]], ids=lambda data: repr(data))
def test_a_principal_that_cannot_be_read_is_refused(with_broker: WithBroker, principal: bytes | None) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        async with inner(node) as peer:
            request = enveloped("UnregisterBroker", 0, unregister_broker.Request(broker_id=99), principal=principal)
            told = await peer.ask("Envelope", request)
            assert (told.error_code, told.response_data) == (ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, None)

    with_broker(scenario)


@given(principal=builds(Principal, just("User"), text(), booleans()))
def test_principals_are_encoded_and_decoded(principal: Principal) -> None:
    again = decode_principal(encode_principal(principal))
    assert (again, again.token_authenticated) == (principal, principal.token_authenticated)
    assert encode_principal(Principal("User", "alice")) == ALICE


@pytest.mark.parametrize(
    ("host", "carried"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8::1", "2001:db8:0:0:0:0:0:1"),
        ("", "0.0.0.0"),
        ("localhost", "0.0.0.0"),
    ],
)
def test_a_forwarded_request_is_authorized_with_the_host_of_the_client(
    with_broker: WithBroker, host: str, carried: str
) -> None:
    """A host that is not an address, of a transport that does not know its peer, is 0.0.0.0. IPv6 addresses in ACLs are
    in Java's notation."""
    hosts = {"t0": "10.1.2.3", "t1": "2001:db8:0:0:0:0:0:1", "t2": "0.0.0.0", "t3": "127.0.0.1"}

    async def scenario(peer: Peer, node: Node) -> None:
        api = by_name["CreateTopics"]
        allowed = [creation(name, CREATE, host=each) for name, each in hosts.items()]
        assert await create(peer, *allowed) == [(0, "")] * len(hosts)
        pointer = ControllerPointer()
        pointer.to(await controller_of(node))
        channel = ControllerChannel(Dialer(node.broker.world.network), pointer, "tests")
        request = create_topics.Request(topics=[topic(name) for name in hosts])
        call = Call(api.key, api.max, "c", host, 1, principal=BOB)
        body = await forwarded(channel, api, api.max, call, build(request, api.max), 20_000)
        channel.close()
        codes = {hosts[row.name]: row.error_code for row in parse(api.response, api.max, body).topics}
        assert codes == {
            each: 0 if each == carried else ErrorCode.TOPIC_AUTHORIZATION_FAILED for each in hosts.values()
        }

    with_broker(scenario, SETTINGS)


def test_which_apis_are_forwarded() -> None:
    assert {api.name for api in ON_CONTROLLER if api.is_forwarded} >= {"CreateTopics", "DescribeQuorum", "AddRaftVoter"}


@pytest.mark.parametrize("api", ON_CONTROLLER, ids=lambda api: api.name)
def test_a_refusal_because_the_controller_moved_is_recognised(api: Api) -> None:
    """The request is then sent again. This applies to every kind of request, and also to an encoded response."""
    for path in [*arrays_of(layout(api.request, api.max)), ()]:
        request = parse(api.request, api.max, request_with_many(api, path, 2), 0)
        for code in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT):
            response = refused(api, request, KafkaError(code))
            received = parse(api.response, api.max, build(response, api.max), 0)
            for each in (response, received):
                rows = getattr(each, api.error_rows) if api.error_rows else [each]
                assert api.has_error(each, ErrorCode.NOT_CONTROLLER) == (
                    bool(rows) and code is ErrorCode.NOT_CONTROLLER
                )
    assert not api.has_error(api.response(), ErrorCode.NOT_CONTROLLER)


@pytest.mark.parametrize("api", [api for api in ON_CONTROLLER if api.error_rows], ids=lambda api: api.name)
def test_responses_with_error_rows_have_no_code_of_their_own(api: Api) -> None:
    assert "error_code" not in dict(layout(api.response, api.max).members)
    row = dict(layout(api.response, api.max).members)[api.error_rows].element  # type: ignore[union-attr]
    assert "error_code" in dict(row.members)  # type: ignore[union-attr]
