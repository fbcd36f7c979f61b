"""Tests ConsumerGroupDescribe over a socket, at every version."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import consumer_group_describe as rpc
from tests.conftest import WithBroker
from tests.handlers.consuming import AT_ONCE, joined
from tests.handlers.grouping import coordinator, member

API = api_table.by_name["ConsumerGroupDescribe"]
CONSUMER_MEMBER, UNKNOWN = 1, -1
ALL_OPERATIONS = 3400


def test_every_version_shows_epochs_members_and_assignments(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        refused = await peer.ask("ConsumerGroupDescribe", rpc.Request(group_ids=["g"]))
        assert refused.groups[0].error_code == ErrorCode.NOT_COORDINATOR
        await coordinator(peer, "t")
        await joined(peer, "g", "a", rack_id="r", instance_id="i")
        await joined(peer, "g", "b")
        for version in range(API.min, API.max + 1):
            request = rpc.Request(group_ids=["g"], include_authorized_operations=True)
            (group,) = (await peer.ask("ConsumerGroupDescribe", request, version=version)).groups
            assert (group.error_code, group.group_state, group.assignor_name) == (0, "Reconciling", "uniform")
            assert (group.group_epoch, group.assignment_epoch) == (3, 3)
            assert group.authorized_operations == ALL_OPERATIONS
            a, b = group.members
            assert (a.member_id, a.instance_id, a.rack_id, a.member_epoch) == ("a", "i", "r", 2)
            assert (b.member_id, b.instance_id, b.rack_id, b.member_epoch) == ("b", None, None, 3)
            has = [(each.topic_name, each.partitions) for each in a.assignment.topic_partitions]
            shall = [(each.topic_name, each.partitions) for each in a.target_assignment.topic_partitions]
            assert (has, shall) == ([("t", [0, 1])], [("t", [0])])
            assert a.member_type == (CONSUMER_MEMBER if version >= 1 else UNKNOWN)

    with_broker(scenario, AT_ONCE)


def test_a_group_of_another_type_is_not_found(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t")
        await member(peer, "classic")
        request = rpc.Request(group_ids=["classic", "missing", ""])
        groups = (await peer.ask("ConsumerGroupDescribe", request)).groups
        assert [(each.group_id, each.error_code) for each in groups] == [
            ("classic", ErrorCode.GROUP_ID_NOT_FOUND),
            ("missing", ErrorCode.GROUP_ID_NOT_FOUND),
            ("", ErrorCode.INVALID_GROUP_ID),
        ]

    with_broker(scenario)
