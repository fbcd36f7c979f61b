"""Tests DeleteAcls over a socket. Kafka's responses are in tests/golden, with an authorizer and without."""

from __future__ import annotations

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import delete_acls as rpc
from tests.conftest import WithBroker
from tests.handlers.acl_setting import BOB, SETTINGS, asked_by, create, creation, selection
from tests.handlers.refusing import told_in_every_version


@pytest.mark.slow
def test_every_filter_is_refused_without_an_authorizer(with_broker: WithBroker) -> None:
    request = rpc.Request(filters=[selection(resource_name_filter=name) for name in ("a", None)])
    for told in told_in_every_version(with_broker, by_name["DeleteAcls"], request):
        rows = [(row.error_code, row.error_message, row.matching_acls) for row in told.filter_results]
        assert rows == [(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.", [])] * 2


def test_each_filter_lists_the_removed_acls(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await create(peer, creation("a"), creation("b"), creation("c", principal="User:ann"))
        filters = [selection(resource_name_filter="a"), selection(principal_filter="User:bob"), selection(operation=99)]
        told = await peer.ask("DeleteAcls", rpc.Request(filters=filters), version=3)
        rows = [(row.error_code, [acl.resource_name for acl in row.matching_acls]) for row in told.filter_results]
        assert rows == [(0, ["a"]), (0, ["a", "b"]), (ErrorCode.INVALID_REQUEST, [])]
        assert [acl.resource_name for acl in node.broker.metadata.image.acls.values()] == ["c"]

    with_broker(scenario, SETTINGS)


def test_a_caller_without_alter_on_the_cluster_is_refused(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await create(peer, creation())
        told = await asked_by(node, BOB, "DeleteAcls", rpc.Request(filters=[selection()]))
        assert [row.error_code for row in told.filter_results] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
        assert len(node.broker.metadata.image.acls) == 1

    with_broker(scenario, SETTINGS)


@pytest.mark.parametrize("field", ["resource_type_filter", "pattern_type_filter", "operation", "permission_type"])
def test_a_code_of_0_closes_the_connection(with_broker: WithBroker, field: str) -> None:
    async def scenario(peer: Peer, _node: Node) -> None:
        with pytest.raises(ConnectionError):
            await peer.ask("DeleteAcls", rpc.Request(filters=[selection(**{field: 0})]), version=3)

    with_broker(scenario, SETTINGS)
