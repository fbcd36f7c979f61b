"""Writes and reads the records of share groups in `__consumer_offsets`, in Kafka's schemas (KIP-932).

The records of a group: its epoch, its share partitions, and for each member its subscription, target assignment and
current assignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kpybroker.groups.share.group import ShareGroup, ShareMember, TopicState
from kpybroker.machine.contract import Stored
from kpybroker.topics import TopicIdPartition
from kpybroker.wire.stored import share_group as stored
from kpybroker.wire.stored.prefixed import build_stored, parse_stored

MEMBER, GROUP_EPOCH, TARGET_EPOCH, TARGET, CURRENT, STATE_PARTITIONS = 10, 11, 12, 13, 14, 15
KINDS = frozenset({MEMBER, GROUP_EPOCH, TARGET_EPOCH, TARGET, CURRENT, STATE_PARTITIONS})
_TOMBSTONE_ORDER = (CURRENT, TARGET, MEMBER, TARGET_EPOCH, STATE_PARTITIONS, GROUP_EPOCH)
"""A member's record is deleted after its assignments, and the group's record last, so that every prefix of the
tombstones can be replayed."""
_REPLAY_ORDER = (GROUP_EPOCH, TARGET_EPOCH, STATE_PARTITIONS, MEMBER, TARGET, CURRENT)


def tombstones(keys: Iterable[bytes]) -> list[Stored]:
    """The tombstones of these keys, in an order in which every prefix can be replayed."""
    ordered = sorted(keys, key=lambda key: _TOMBSTONE_ORDER.index(int.from_bytes(key[:2], "big")))
    return [Stored(key, None) for key in ordered]


def _record(key: Any, value: Any) -> Stored:
    return Stored(build_stored(key), None if value is None else build_stored(value))


def epoch_record(group: ShareGroup) -> Stored:
    return _record(
        stored.ShareGroupMetadataKey(group_id=group.group_id),
        stored.ShareGroupMetadataValue(epoch=group.epoch, metadata_hash=group.metadata_hash),
    )


def member_record(group_id: str, member: ShareMember) -> Stored:
    return _record(
        stored.ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        stored.ShareGroupMemberMetadataValue(
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.names),
        ),
    )


def target_epoch_record(group: ShareGroup) -> Stored:
    return _record(
        stored.ShareGroupTargetAssignmentMetadataKey(group_id=group.group_id),
        stored.ShareGroupTargetAssignmentMetadataValue(
            assignment_epoch=group.assignment_epoch, assignment_timestamp=group.assigned_at_ms
        ),
    )


def target_record(group_id: str, member_id: str, target: frozenset[TopicIdPartition]) -> Stored:
    return _record(
        stored.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        stored.ShareGroupTargetAssignmentMemberValue(
            topic_partitions=[
                stored.TopicPartition(topic_id=topic, partitions=partitions)
                for topic, partitions in by_topic(target).items()
            ]
        ),
    )


def current_record(group_id: str, member: ShareMember) -> Stored:
    return _record(
        stored.ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        stored.ShareGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            assigned_partitions=[
                stored.TopicPartitions(topic_id=topic, partitions=partitions)
                for topic, partitions in by_topic(member.assigned).items()
            ],
        ),
    )


def member_tombstones(group_id: str, member_id: str) -> list[Stored]:
    """The tombstones of a member."""
    return [
        _record(stored.ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        _record(stored.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        _record(stored.ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def state_record(group: ShareGroup) -> Stored:
    """The share partitions of a group."""
    return _record(
        stored.ShareGroupStatePartitionMetadataKey(group_id=group.group_id),
        stored.ShareGroupStatePartitionMetadataValue(
            initializing_topics=_topics(group.initializing),
            initialized_topics=_topics(group.initialized),
            deleting_topics=[
                stored.TopicInfo(topic_id=topic, topic_name=name) for topic, name in group.deleting.items()
            ],
        ),
    )


def by_topic(places: Iterable[TopicIdPartition]) -> dict[bytes, list[int]]:
    """Topic id -> partitions, in order."""
    found: dict[bytes, list[int]] = {}
    for topic, partition in sorted(places):
        found.setdefault(topic, []).append(partition)
    return found


def _topics(states: Mapping[bytes, TopicState]) -> list[Any]:
    return [
        stored.TopicPartitionsInfo(topic_id=topic, topic_name=state.name, partitions=sorted(state.partitions))
        for topic, state in states.items()
    ]


# -- reading ----------------------------------------------------------------------------------------------------------


def read_group(group_id: str, said: Mapping[bytes, bytes]) -> ShareGroup:
    """The group in these records. The caller must start its timers. Raises Damage."""
    group = ShareGroup(group_id)
    for key in sorted(said, key=lambda key: _REPLAY_ORDER.index(int.from_bytes(key[:2], "big"))):
        _READERS[int.from_bytes(key[:2], "big")](group, key, said[key])
    return group


def _read_epoch(group: ShareGroup, _: bytes, value: bytes) -> None:
    told = parse_stored(stored.ShareGroupMetadataValue, value)
    group.enter_epoch(told.epoch, told.metadata_hash)


def _read_target_epoch(group: ShareGroup, _: bytes, value: bytes) -> None:
    told = parse_stored(stored.ShareGroupTargetAssignmentMetadataValue, value)
    group.assigned(told.assignment_epoch, told.assignment_timestamp, None)


def _read_states(group: ShareGroup, _: bytes, value: bytes) -> None:
    told = parse_stored(stored.ShareGroupStatePartitionMetadataValue, value)
    group.initializing.update(_states(told.initializing_topics))
    group.initialized.update(_states(told.initialized_topics))
    group.deleting.update({bytes(each.topic_id): each.topic_name for each in told.deleting_topics})


def _read_member(group: ShareGroup, key: bytes, value: bytes) -> None:
    told = parse_stored(stored.ShareGroupMemberMetadataValue, value)
    member = ShareMember(parse_stored(stored.ShareGroupMemberMetadataKey, key).member_id)
    member.update(told.rack_id, told.client_id, told.client_host, told.subscribed_topic_names)
    group.members[member.member_id] = member


def _read_target(group: ShareGroup, key: bytes, value: bytes) -> None:
    told = parse_stored(stored.ShareGroupTargetAssignmentMemberValue, value)
    member_id = parse_stored(stored.ShareGroupTargetAssignmentMemberKey, key).member_id
    group.targets[member_id] = _places(told.topic_partitions)


def _read_current(group: ShareGroup, key: bytes, value: bytes) -> None:
    told = parse_stored(stored.ShareGroupCurrentMemberAssignmentValue, value)
    member = group.members.get(parse_stored(stored.ShareGroupCurrentMemberAssignmentKey, key).member_id)
    if member is not None:
        member.hold(told.member_epoch, told.previous_member_epoch, _places(told.assigned_partitions))


def _places(told: Iterable[Any]) -> frozenset[TopicIdPartition]:
    return frozenset((bytes(each.topic_id), partition) for each in told for partition in each.partitions)


def _states(told: Iterable[Any]) -> dict[bytes, TopicState]:
    return {
        bytes(each.topic_id): TopicState(each.topic_name, frozenset(each.partitions))
        for each in told
        if each.partitions
    }


_READERS = {
    GROUP_EPOCH: _read_epoch,
    STATE_PARTITIONS: _read_states,
    MEMBER: _read_member,
    TARGET_EPOCH: _read_target_epoch,
    TARGET: _read_target,
    CURRENT: _read_current,
}
