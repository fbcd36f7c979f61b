"""Writes and reads the records of classic groups in `__consumer_offsets`."""

from __future__ import annotations

from kpybroker.groups.classic.group import ClassicGroup, ClassicMember
from kpybroker.groups.ground.record_keys import GROUP_METADATA, HIGHEST_VERSION, KEY_VERSION, version_of, versioned
from kpybroker.machine.contract import Stored
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.stored.group import GroupMetadataKey, GroupMetadataValue, MemberMetadata

_GROUP_VERSION = 3


def _group_key(group_id: str) -> bytes:
    return versioned(GROUP_METADATA, build(GroupMetadataKey(group=group_id), KEY_VERSION))


def group_record(group: ClassicGroup) -> Stored:
    """The current state of a group: the generation, its protocol and leader, and all members with their assignments."""
    protocol = group.protocol
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=protocol,
        leader=group.leader,
        current_state_timestamp=-1 if group.state_since_ms is None else group.state_since_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(protocol or ""),
                assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )
    return Stored(_group_key(group.group_id), versioned(_GROUP_VERSION, build(value, _GROUP_VERSION)))


def group_tombstone(group_id: str) -> Stored:
    """The tombstone that deletes a group."""
    return Stored(_group_key(group_id), None)


def read_group_id(key: bytes) -> str:
    """The group of a GroupMetadata record."""
    return parse(GroupMetadataKey, KEY_VERSION, key, 2).group


def read_group(group_id: str, value: bytes, wall_ms: int) -> ClassicGroup:
    """The group in a GroupMetadata record, stable if it has members. The caller must start their sessions."""
    said = parse(GroupMetadataValue, version_of(value, HIGHEST_VERSION), value, 2)
    group = ClassicGroup(group_id, wall_ms)
    for each in said.members:
        protocols = ((said.protocol or "", bytes(each.subscription)),)
        member = ClassicMember(each.member_id, each.group_instance_id, each.client_id, each.client_host, protocols)
        member.joined()
        member.set_timeouts(each.session_timeout, each.rebalance_timeout)
        member.assign(bytes(each.assignment))
        group.add(member, said.protocol_type)
    since_ms = None if said.current_state_timestamp < 0 else said.current_state_timestamp
    group.restore(said.protocol_type or None, said.protocol, said.generation, said.leader, since_ms)
    return group
