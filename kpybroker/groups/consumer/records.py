"""Writes and reads the records of consumer groups in `__consumer_offsets`, in Kafka's schemas (KIP-848).

A group has records for its epoch, and for the subscription, target assignment and current assignment of each member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kpybroker.groups.consumer.group import ConsumerGroup, ConsumerMember, CurrentAssignment, MemberState, ResolvedRegex
from kpybroker.machine.contract import Stored
from kpybroker.topics import TopicIdPartition
from kpybroker.wire.stored import consumer_group as stored
from kpybroker.wire.stored.prefixed import build_stored, parse_stored

GROUP_EPOCH, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGEX = 3, 4, 5, 6, 7, 8, 16
KINDS = frozenset({GROUP_EPOCH, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGEX})
_TOMBSTONE_ORDER = (CURRENT, TARGET, TARGET_EPOCH, MEMBER, PARTITION_METADATA, REGEX, GROUP_EPOCH)
"""A member's record is deleted after its assignments, and the group's record last, so that any prefix can be replayed.
"""
_REPLAY_ORDER = (GROUP_EPOCH, PARTITION_METADATA, TARGET_EPOCH, MEMBER, TARGET, CURRENT, REGEX)


def tombstones(keys: Iterable[bytes]) -> list[Stored]:
    """The tombstones of these keys, ordered so that every prefix can be replayed."""
    ordered = sorted(keys, key=lambda key: _TOMBSTONE_ORDER.index(int.from_bytes(key[:2], "big")))
    return [Stored(key, None) for key in ordered]


def _record(key: Any, value: Any) -> Stored:
    return Stored(build_stored(key), None if value is None else build_stored(value))


def epoch_record(group: ConsumerGroup) -> Stored:
    return _record(
        stored.ConsumerGroupMetadataKey(group_id=group.group_id),
        stored.ConsumerGroupMetadataValue(epoch=group.epoch, metadata_hash=group.metadata_hash),
    )


def member_record(group_id: str, member: ConsumerMember) -> Stored:
    return _record(
        stored.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        stored.ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.names),
            subscribed_topic_regex=member.regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.server_assignor,
            classic_member_metadata=member.classic,
        ),
    )


def target_epoch_record(group: ConsumerGroup) -> Stored:
    return _record(
        stored.ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id),
        stored.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=group.assignment_epoch, assignment_timestamp=group.assigned_at_ms
        ),
    )


def target_record(group_id: str, member_id: str, target: frozenset[TopicIdPartition]) -> Stored:
    return _record(
        stored.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        stored.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                stored.TopicPartition(topic_id=topic, partitions=partitions)
                for topic, partitions in by_topic(target).items()
            ]
        ),
    )


def current_record(group_id: str, member: ConsumerMember) -> Stored:
    current = member.current
    return _record(
        stored.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        stored.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=current.epoch,
            previous_member_epoch=current.previous_epoch,
            state=current.state,
            assigned_partitions=_with_epochs(current.assigned),
            partitions_pending_revocation=_with_epochs(current.revoking),
        ),
    )


def member_tombstones(group_id: str, member_id: str) -> list[Stored]:
    """The tombstones of a member."""
    return [
        _record(stored.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        _record(stored.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        _record(stored.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex | None) -> Stored:
    """The topics that a regular expression matches; None if no member uses the expression any longer."""
    value = resolved and stored.ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
    )
    return _record(stored.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), value)


def by_topic(places: Iterable[TopicIdPartition]) -> dict[bytes, list[int]]:
    """Sorted partitions by topic id."""
    found: dict[bytes, list[int]] = {}
    for topic, partition in sorted(places):
        found.setdefault(topic, []).append(partition)
    return found


def _with_epochs(places: Mapping[TopicIdPartition, int]) -> list[Any]:
    return [
        stored.TopicPartitions(
            topic_id=topic,
            partitions=partitions,
            assignment_epochs=[places[topic, partition] for partition in partitions],
        )
        for topic, partitions in by_topic(places).items()
    ]


# -- reading ----------------------------------------------------------------------------------------------------------


def read_group(group_id: str, said: Mapping[bytes, bytes]) -> ConsumerGroup:
    """The group in these records. The caller must start its timers. Raises Damage."""
    group = ConsumerGroup(group_id)
    for key in sorted(said, key=lambda key: _REPLAY_ORDER.index(int.from_bytes(key[:2], "big"))):
        _READERS[int.from_bytes(key[:2], "big")](group, key, said[key])
    return group


def _read_epoch(group: ConsumerGroup, _: bytes, value: bytes) -> None:
    told = parse_stored(stored.ConsumerGroupMetadataValue, value)
    group.enter_epoch(told.epoch, told.metadata_hash)


def _read_target_epoch(group: ConsumerGroup, _: bytes, value: bytes) -> None:
    told = parse_stored(stored.ConsumerGroupTargetAssignmentMetadataValue, value)
    group.assigned(told.assignment_epoch, told.assignment_timestamp, None)


def _read_member(group: ConsumerGroup, key: bytes, value: bytes) -> None:
    told = parse_stored(stored.ConsumerGroupMemberMetadataValue, value)
    member = ConsumerMember(parse_stored(stored.ConsumerGroupMemberMetadataKey, key).member_id, told.instance_id)
    member.update(told.client_id, told.client_host, told.rack_id, told.rebalance_timeout_ms, told.server_assignor)
    member.subscribe(told.subscribed_topic_names, told.subscribed_topic_regex or "")
    told_classic = told.classic_member_metadata
    if told_classic is not None and told_classic.supported_protocols:
        member.use_classic(
            told_classic
        )  # a regular expression without a protocol belongs to no member, because earlier versions omitted the field
    group.add(member)


def _read_target(group: ConsumerGroup, key: bytes, value: bytes) -> None:
    told = parse_stored(stored.ConsumerGroupTargetAssignmentMemberValue, value)
    member_id = parse_stored(stored.ConsumerGroupTargetAssignmentMemberKey, key).member_id
    group.targets[member_id] = frozenset(
        (bytes(each.topic_id), partition) for each in told.topic_partitions for partition in each.partitions
    )


def _read_current(group: ConsumerGroup, key: bytes, value: bytes) -> None:
    told = parse_stored(stored.ConsumerGroupCurrentMemberAssignmentValue, value)
    member = group.members.get(parse_stored(stored.ConsumerGroupCurrentMemberAssignmentKey, key).member_id)
    if member is None:
        return
    known = told.state in tuple(MemberState)
    current = CurrentAssignment(
        told.member_epoch,
        told.previous_member_epoch,
        MemberState(told.state) if known else MemberState.STABLE,
        _epochs(told.assigned_partitions, told.member_epoch),
        _epochs(told.partitions_pending_revocation, told.member_epoch),
    )
    group.hold(member, current)


def _epochs(told: list[Any], epoch: int) -> dict[TopicIdPartition, int]:
    """Epochs by partition. Partitions without an epoch (written before Kafka 4.3) have the member's epoch."""
    return {
        (bytes(each.topic_id), partition): since
        for each in told
        for partition, since in zip(
            each.partitions, each.assignment_epochs or [epoch] * len(each.partitions), strict=False
        )
    }


def _read_regex(group: ConsumerGroup, key: bytes, value: bytes) -> None:
    told = parse_stored(stored.ConsumerGroupRegularExpressionValue, value)
    regex = parse_stored(stored.ConsumerGroupRegularExpressionKey, key).regular_expression
    group.resolved[regex] = ResolvedRegex(frozenset(told.topics), told.version, told.timestamp)


def _pass_over(_group: ConsumerGroup, _key: bytes, _value: bytes) -> None:
    """Ignore a record of topic metadata, which Kafka wrote before 4.1."""


_READERS = {
    GROUP_EPOCH: _read_epoch,
    PARTITION_METADATA: _pass_over,
    MEMBER: _read_member,
    TARGET_EPOCH: _read_target_epoch,
    TARGET: _read_target,
    CURRENT: _read_current,
    REGEX: _read_regex,
}
