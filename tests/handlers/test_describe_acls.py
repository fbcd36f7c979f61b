"""Tests DescribeAcls over a socket. Kafka's responses are in tests/golden, with an authorizer and without."""

from __future__ import annotations

import asyncio

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.handlers import describe_acls
from kpybroker.server.node import Node
from kpybroker.wire.api import by_name
from tests.conftest import WithBroker
from tests.handlers.acl_setting import (
    ALLOW,
    BOB,
    CLUSTER,
    DESCRIBE,
    SETTINGS,
    asked_by,
    create,
    creation,
    description,
)
from tests.handlers.refusing import told_in_every_version


def test_without_an_authorizer_it_is_refused(with_broker: WithBroker) -> None:
    for told in told_in_every_version(with_broker, by_name["DescribeAcls"], description()):
        assert (told.error_code, told.resources) == (ErrorCode.SECURITY_DISABLED, [])
        assert told.error_message == "No Authorizer is configured on the broker"


def test_acls_are_listed_by_resource(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, _node: Node) -> None:
        await create(peer, creation("a"), creation("b"), creation("a", principal="User:ann"))
        told = await peer.ask("DescribeAcls", description(), version=3)
        rows = [(row.resource_name, [acl.principal for acl in row.acls]) for row in told.resources]
        assert rows == [("a", ["User:bob", "User:ann"]), ("b", ["User:bob"])]

    with_broker(scenario, SETTINGS)


def test_it_requires_describe_on_the_cluster(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        told = await asked_by(node, BOB, "DescribeAcls", description())
        assert (told.error_code, told.resources) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
        await create(peer, creation("kafka-cluster", DESCRIBE, ALLOW, resource=CLUSTER))
        told = await asked_by(node, BOB, "DescribeAcls", description())
        assert (told.error_code, len(told.resources)) == (0, 1)

    with_broker(scenario, SETTINGS)


@pytest.mark.parametrize("field", ["resource_type_filter", "pattern_type_filter", "operation", "permission_type"])
def test_a_code_of_0_closes_the_connection(with_broker: WithBroker, field: str) -> None:
    async def scenario(peer: Peer, _node: Node) -> None:
        with pytest.raises(ConnectionError):
            await peer.ask("DescribeAcls", description(**{field: 0}), version=3)

    with_broker(scenario, SETTINGS)


def test_a_response_has_a_limit(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe_acls, "DESCRIBED_MAX", 2)

    async def scenario(peer: Peer, _node: Node) -> None:
        await create(peer, creation("a"), creation("b"), creation("c"))
        told = await peer.ask("DescribeAcls", description(), version=3)
        assert (told.error_code, told.resources) == (ErrorCode.POLICY_VIOLATION, [])
        assert "selects more than 2 ACLs; name a resource" in told.error_message
        told = await peer.ask("DescribeAcls", description(resource_name_filter="a"), version=3)
        assert [row.resource_name for row in told.resources] == ["a"]

    with_broker(scenario, SETTINGS)


def test_thousands_of_rows_do_not_delay_others(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        many = [creation(f"t{number}") for number in range(5000)]
        await create(peer, *many)
        other = await Peer.dial(node.broker.world.network, *_address(node))
        listing = asyncio.ensure_future(peer.ask("DescribeAcls", description(), version=3))
        assert (await other.ask("DescribeAcls", description(principal_filter="User:x"), version=3)).resources == []
        assert len((await listing).resources) == 5000
        other.close()

    with_broker(scenario, SETTINGS)


def _address(node: Node) -> tuple[str, int]:
    host, _, port = node.bootstrap.rpartition(":")
    return host, int(port)
