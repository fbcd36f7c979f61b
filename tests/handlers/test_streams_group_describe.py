"""StreamsGroupDescribe over a socket."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.rpc import streams_group_describe
from oracle.streams_scenes import counting
from tests.conftest import WithBroker
from tests.handlers.streaming import AT_ONCE, joined, topic


def test_groups_are_described_with_topology_and_members(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await topic(peer)
        epoch = (await joined(peer, counting("app", source="t"))).member_epoch
        request = streams_group_describe.Request(group_ids=["g", "none"], include_authorized_operations=True)
        group, none = (await peer.ask("StreamsGroupDescribe", request)).groups
        assert (group.group_state, group.group_epoch) == ("Stable", epoch)
        reads, counts = group.topology.subtopologies
        assert (reads.source_topics, reads.repartition_sink_topics) == (["t"], ["app-repartition"])
        assert [(info.name, info.partitions) for info in counts.state_changelog_topics] == [("app-changelog", 2)]
        [member] = group.members
        assert (member.member_id, member.member_epoch, member.process_id) == ("m", epoch, "m")
        assert [row.partitions for row in member.assignment.active_tasks] == [[0, 1], [0, 1]]
        assert group.authorized_operations > 0
        assert none.error_code == ErrorCode.GROUP_ID_NOT_FOUND

    with_broker(scenario, AT_ONCE)
