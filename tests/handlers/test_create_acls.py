"""Tests CreateAcls over a socket. Kafka's responses are in tests/golden, with an authorizer and without."""

from __future__ import annotations

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.handlers import create_acls
from kpybroker.server.node import Node
from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import create_acls as rpc
from tests.conftest import WithBroker
from tests.handlers.acl_setting import BOB, SETTINGS, asked_by, create, creation
from tests.handlers.refusing import told_in_every_version


def test_every_row_is_refused_without_an_authorizer(with_broker: WithBroker) -> None:
    request = rpc.Request(creations=[creation(name) for name in ("a", "b")])
    for told in told_in_every_version(with_broker, by_name["CreateAcls"], request):
        rows = [(row.error_code, row.error_message) for row in told.results]
        assert rows == [(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")] * 2


def test_each_row_succeeds_or_fails_alone(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        told = await create(peer, creation(), creation(""), creation(), creation(principal="bob"), creation("u"))
        assert [code for code, _ in told] == [0, ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST, 0]
        assert "no colon is present" in told[3][1]
        assert [acl.resource_name for acl in node.broker.metadata.image.acls.values()] == ["t", "u"]

    with_broker(scenario, SETTINGS)


def test_a_caller_without_alter_on_the_cluster_is_refused(with_broker: WithBroker) -> None:
    async def scenario(_peer: Peer, node: Node) -> None:
        told = await asked_by(node, BOB, "CreateAcls", rpc.Request(creations=[creation(), creation("u")]))
        assert [row.error_code for row in told.results] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2
        assert not node.broker.metadata.image.acls

    with_broker(scenario, SETTINGS)


@pytest.mark.parametrize("field", ["resource_type", "resource_pattern_type", "operation", "permission_type"])
def test_a_code_of_0_closes_the_connection(with_broker: WithBroker, field: str) -> None:
    async def scenario(peer: Peer, _node: Node) -> None:
        wrong = creation()
        setattr(wrong, field, 0)
        with pytest.raises(ConnectionError):
            await create(peer, creation(), wrong)

    with_broker(scenario, SETTINGS)


@pytest.mark.parametrize("field", ["resource_type", "resource_pattern_type", "operation", "permission_type"])
@pytest.mark.parametrize("code", [-1, 1, 99])
def test_an_unknown_code_is_an_error_of_its_row(with_broker: WithBroker, field: str, code: int) -> None:
    async def scenario(peer: Peer, _node: Node) -> None:
        wrong = creation()
        setattr(wrong, field, code)
        assert [each for each, _ in await create(peer, wrong, creation())] == [ErrorCode.INVALID_REQUEST, 0]

    with_broker(scenario, SETTINGS)


def test_more_than_kafkas_limit_are_refused(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create_acls, "CREATED_MAX", 600)

    async def scenario(peer: Peer, node: Node) -> None:
        many = [creation(f"t{number}") for number in range(601)]
        assert {code for code, _ in await create(peer, *many)} == {ErrorCode.POLICY_VIOLATION}
        assert {code for code, _ in await create(peer, *many[:600])} == {0}
        assert len(node.broker.metadata.image.acls) == 600

    with_broker(scenario, SETTINGS)
