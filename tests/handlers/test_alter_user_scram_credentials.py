"""Tests AlterUserScramCredentials over a socket. Kafka's responses are in tests/golden (test_against_golden.py)."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode, MalformedFrame
from kpybroker.security.scram import ScramMechanism, credential_of
from kpybroker.server.node import Node
from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import alter_user_scram_credentials as rpc
from tests.conftest import WithBroker

API = by_name["AlterUserScramCredentials"]
SHA_256, SHA_512 = ScramMechanism


def upsertion(user: str, mechanism: int = SHA_256, iterations: int = 4096) -> rpc.ScramCredentialUpsertion:
    return rpc.ScramCredentialUpsertion(
        name=user, mechanism=mechanism, iterations=iterations, salt=b"grains", salted_password=b"salted"
    )


def deletion(user: str, mechanism: int = SHA_256) -> rpc.ScramCredentialDeletion:
    return rpc.ScramCredentialDeletion(name=user, mechanism=mechanism)


def test_credentials_are_set_and_removed_on_both_listeners(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        port = await node.server.start("127.0.0.1", 0, "CONTROLLER", "controller")
        inner = await Peer.dial(node.broker.world.network, "127.0.0.1", port)
        for asked in (peer, inner):
            told = await asked.ask(API.name, rpc.Request(upsertions=[upsertion("ann"), upsertion("bob", SHA_512)]))
            assert [(row.user, row.error_code) for row in told.results] == [("ann", 0), ("bob", 0)]
            assert node.broker.metadata.image.scram_credentials == {
                "ann": {SHA_256: credential_of(SHA_256, b"grains", b"salted", 4096)},
                "bob": {SHA_512: credential_of(SHA_512, b"grains", b"salted", 4096)},
            }
            told = await asked.ask(API.name, rpc.Request(deletions=[deletion("ann"), deletion("bob", SHA_512)]))
            assert [(row.user, row.error_code) for row in told.results] == [("ann", 0), ("bob", 0)]
            assert node.broker.metadata.image.scram_credentials == {}
        inner.close()

    with_broker(scenario)


def test_each_user_is_refused_separately(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        request = rpc.Request(deletions=[deletion("nobody")], upsertions=[upsertion("ann"), upsertion("bob", 0)])
        told = await peer.ask(API.name, request)
        assert {row.user: row.error_code for row in told.results} == {
            "nobody": ErrorCode.RESOURCE_NOT_FOUND,
            "ann": 0,
            "bob": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        }
        assert list(node.broker.metadata.image.scram_credentials) == ["ann"]

    with_broker(scenario)


def test_one_request_has_a_limit(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        users = [f"user-{number}" for number in range(API.elements + 1)]
        told = await peer.ask(API.name, rpc.Request(upsertions=[upsertion(user) for user in users[1:]]))
        assert {row.error_code for row in told.results} == {0}
        assert len(node.broker.metadata.image.scram_credentials) == API.elements
        try:
            await peer.ask(API.name, rpc.Request(upsertions=[upsertion(user) for user in users]))
        except (ConnectionError, MalformedFrame):
            return
        raise AssertionError("a request above the limit was served")

    with_broker(scenario)
