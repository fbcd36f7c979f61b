"""Tests DescribeGroups over a socket, at every version."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import describe_groups as rpc
from tests.conftest import WithBroker
from tests.handlers.grouping import SUBSCRIBED_TO_T, coordinator, member

API = api_table.by_name["DescribeGroups"]


def test_every_version_describes(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        known = await member(peer, "g")
        for version in range(API.min, API.max + 1):
            request = rpc.Request(groups=["g", "missing"], include_authorized_operations=version >= 3)
            found, missing = (await peer.ask("DescribeGroups", request, version=version)).groups
            assert (found.error_code, found.group_id, found.group_state) == (0, "g", "Stable")
            assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
            (one,) = found.members
            assert (one.member_id, one.client_id, one.client_host) == (known, "kpybroker", "/127.0.0.1")
            assert (one.member_metadata, one.member_assignment) == (SUBSCRIBED_TO_T, b"all")
            assert found.authorized_operations == (3400 if version >= 3 else -(2**31))
            unknown = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
            assert (missing.error_code, missing.group_id, missing.group_state) == (unknown, "missing", "Dead")
            assert missing.authorized_operations == (3400 if 3 <= version < 6 else -(2**31))
            assert missing.error_message == ("Group missing not found." if version >= 6 else None)

    with_broker(scenario)


def test_without_a_coordinator_each_group_has_the_error(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for version in range(API.min, API.max + 1):
            (told,) = (await peer.ask("DescribeGroups", rpc.Request(groups=["g"]), version=version)).groups
            assert (told.error_code, told.group_id) == (ErrorCode.NOT_COORDINATOR, "g")

    with_broker(scenario)
