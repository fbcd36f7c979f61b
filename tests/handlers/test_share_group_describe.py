"""Tests ShareGroupDescribe over a socket."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.rpc import share_group_describe
from tests.conftest import WithBroker
from tests.handlers.sharing import AT_ONCE, joined, topic


def test_groups_are_described_with_their_members(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await topic(peer)
        epoch = (await joined(peer)).member_epoch
        request = share_group_describe.Request(group_ids=["g", "none"], include_authorized_operations=True)
        group, none = (await peer.ask("ShareGroupDescribe", request)).groups
        assert (group.group_state, group.group_epoch, group.assignor_name) == ("Stable", epoch, "simple")
        [member] = group.members
        assert (member.member_id, member.member_epoch, member.subscribed_topic_names) == ("m", epoch, ["t"])
        assert member.assignment.topic_partitions[0].partitions == [0]
        assert group.authorized_operations > 0
        assert none.error_code == ErrorCode.GROUP_ID_NOT_FOUND

    with_broker(scenario, AT_ONCE)
