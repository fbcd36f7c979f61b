"""Describes classic groups for DescribeGroups and ListGroups."""

from __future__ import annotations

from kpybroker.groups.classic.group import ClassicGroup, GroupState
from kpybroker.wire.rpc.describe_groups import DescribedGroup, DescribedGroupMember
from kpybroker.wire.rpc.list_groups import ListedGroup


def listed(group: ClassicGroup) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.state.value,
        group_type="classic",
    )


def described(group: ClassicGroup) -> DescribedGroup:
    """The group's description. As in Kafka, it has the protocol and the metadata only if the group is stable."""
    stable = group.state is GroupState.STABLE
    protocol = (group.protocol or "") if stable else ""
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol) if stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )
