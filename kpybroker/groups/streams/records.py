"""Writes and reads the records of streams groups in `__consumer_offsets`, in Kafka's schemas (KIP-1071).

The records of a group: its epoch, its topology, and for each member its metadata, target assignment and current
assignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kpybroker.groups.streams.group import (
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    StreamsGroup,
    StreamsMember,
)
from kpybroker.groups.streams.tasks import HeldTasks, Task, Tasks, by_subtopology, task_ids, tasks_in
from kpybroker.groups.streams.topology import Topology
from kpybroker.machine.contract import Stored
from kpybroker.wire.stored import streams_group as stored
from kpybroker.wire.stored.prefixed import build_stored, parse_stored

GROUP_EPOCH, MEMBER, TARGET_EPOCH, TARGET, CURRENT, TOPOLOGY = 17, 19, 20, 21, 22, 23
KINDS = frozenset({GROUP_EPOCH, MEMBER, TARGET_EPOCH, TARGET, CURRENT, TOPOLOGY})
_TOMBSTONE_ORDER = (CURRENT, TARGET, TARGET_EPOCH, MEMBER, GROUP_EPOCH, TOPOLOGY)
"""Kafka's order: a member's record is deleted after its assignments."""
_REPLAY_ORDER = (GROUP_EPOCH, TOPOLOGY, TARGET_EPOCH, MEMBER, TARGET, CURRENT)


def tombstones(keys: Iterable[bytes]) -> list[Stored]:
    """The tombstones of these keys, in an order in which every prefix can be replayed."""
    ordered = sorted(keys, key=lambda key: _TOMBSTONE_ORDER.index(int.from_bytes(key[:2], "big")))
    return [Stored(key, None) for key in ordered]


def _record(key: Any, value: Any) -> Stored:
    return Stored(build_stored(key), None if value is None else build_stored(value))


def epoch_record(group: StreamsGroup) -> Stored:
    return _record(
        stored.StreamsGroupMetadataKey(group_id=group.group_id),
        stored.StreamsGroupMetadataValue(
            epoch=group.epoch,
            metadata_hash=group.metadata_hash,
            validated_topology_epoch=group.validated_epoch,
            last_assignment_configs=[
                stored.LastAssignmentConfig(key=key, value=value)
                for key, value in sorted(group.assignment_configs.items())
            ],
        ),
    )


def topology_record(group_id: str, topology: Topology) -> Stored:
    return _record(
        stored.StreamsGroupTopologyKey(group_id=group_id),
        stored.StreamsGroupTopologyValue(epoch=topology.epoch, subtopologies=list(topology.subtopologies.values())),
    )


def member_record(group_id: str, member_id: str, metadata: MemberMetadata) -> Stored:
    endpoint = metadata.endpoint
    return _record(
        stored.StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id),
        stored.StreamsGroupMemberMetadataValue(
            instance_id=None,
            rack_id=metadata.rack_id,
            client_id=metadata.client_id,
            client_host=metadata.client_host,
            rebalance_timeout_ms=metadata.rebalance_timeout_ms,
            topology_epoch=metadata.topology_epoch,
            process_id=metadata.process_id,
            user_endpoint=None if endpoint is None else stored.Endpoint(host=endpoint[0], port=endpoint[1]),
            client_tags=[stored.KeyValue(key=key, value=value) for key, value in sorted(metadata.tags.items())],
        ),
    )


def target_epoch_record(group: StreamsGroup) -> Stored:
    return _record(
        stored.StreamsGroupTargetAssignmentMetadataKey(group_id=group.group_id),
        stored.StreamsGroupTargetAssignmentMetadataValue(
            assignment_epoch=group.assignment_epoch, assignment_timestamp=group.assigned_at_ms
        ),
    )


def target_record(group_id: str, member_id: str, target: Tasks) -> Stored:
    return _record(
        stored.StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        stored.StreamsGroupTargetAssignmentMemberValue(
            active_tasks=task_ids(stored.TaskIds, target.active),
            standby_tasks=task_ids(stored.TaskIds, target.standby),
            warmup_tasks=task_ids(stored.TaskIds, target.warmup),
        ),
    )


def current_record(group_id: str, member: StreamsMember) -> Stored:
    current = member.current
    assigned, revoking = current.assigned, current.revoking
    return _record(
        stored.StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        stored.StreamsGroupCurrentMemberAssignmentValue(
            member_epoch=current.epoch,
            previous_member_epoch=current.previous_epoch,
            state=current.state,
            active_tasks=_with_epochs(assigned.active),
            standby_tasks=task_ids(stored.CurrentTaskIds, assigned.standby),
            warmup_tasks=task_ids(stored.CurrentTaskIds, assigned.warmup),
            active_tasks_pending_revocation=_with_epochs(revoking.active),
            standby_tasks_pending_revocation=task_ids(stored.CurrentTaskIds, revoking.standby),
            warmup_tasks_pending_revocation=task_ids(stored.CurrentTaskIds, revoking.warmup),
        ),
    )


def _with_epochs(tasks: Mapping[Task, int]) -> list[Any]:
    return [
        stored.CurrentTaskIds(
            subtopology_id=name,
            partitions=partitions,
            assignment_epochs=[tasks[name, partition] for partition in partitions],
        )
        for name, partitions in by_subtopology(tasks).items()
    ]


def member_tombstones(group_id: str, member_id: str) -> list[Stored]:
    """The tombstones of a member."""
    return [
        _record(stored.StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        _record(stored.StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        _record(stored.StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


# -- reading ----------------------------------------------------------------------------------------------------------


def read_group(group_id: str, said: Mapping[bytes, bytes]) -> StreamsGroup:
    """The group in these records. The caller must start its timers. Raises Damage."""
    group = StreamsGroup(group_id)
    for key in sorted(said, key=lambda key: _REPLAY_ORDER.index(int.from_bytes(key[:2], "big"))):
        _READERS[int.from_bytes(key[:2], "big")](group, key, said[key])
    return group


def _read_epoch(group: StreamsGroup, _: bytes, value: bytes) -> None:
    told = parse_stored(stored.StreamsGroupMetadataValue, value)
    configs = {each.key: each.value for each in told.last_assignment_configs or ()}
    group.enter_epoch(told.epoch, told.metadata_hash, told.validated_topology_epoch, configs)


def _read_topology(group: StreamsGroup, _: bytes, value: bytes) -> None:
    told = parse_stored(stored.StreamsGroupTopologyValue, value)
    group.adopt(Topology(told.epoch, told.subtopologies))


def _read_target_epoch(group: StreamsGroup, _: bytes, value: bytes) -> None:
    told = parse_stored(stored.StreamsGroupTargetAssignmentMetadataValue, value)
    group.assigned(told.assignment_epoch, told.assignment_timestamp, None)


def _read_member(group: StreamsGroup, key: bytes, value: bytes) -> None:
    told = parse_stored(stored.StreamsGroupMemberMetadataValue, value)
    member = StreamsMember(parse_stored(stored.StreamsGroupMemberMetadataKey, key).member_id)
    endpoint = told.user_endpoint
    member.update(
        MemberMetadata(
            told.rack_id,
            told.client_id,
            told.client_host,
            told.rebalance_timeout_ms,
            told.topology_epoch,
            told.process_id,
            None if endpoint is None else (endpoint.host, endpoint.port),
            {each.key: each.value for each in told.client_tags},
        )
    )
    group.add(member)


def _read_target(group: StreamsGroup, key: bytes, value: bytes) -> None:
    told = parse_stored(stored.StreamsGroupTargetAssignmentMemberValue, value)
    member_id = parse_stored(stored.StreamsGroupTargetAssignmentMemberKey, key).member_id
    group.targets[member_id] = Tasks(
        tasks_in(told.active_tasks), tasks_in(told.standby_tasks), tasks_in(told.warmup_tasks)
    )


def _read_current(group: StreamsGroup, key: bytes, value: bytes) -> None:
    told = parse_stored(stored.StreamsGroupCurrentMemberAssignmentValue, value)
    member = group.members.get(parse_stored(stored.StreamsGroupCurrentMemberAssignmentKey, key).member_id)
    if member is None:
        return
    known = told.state in tuple(MemberState)
    current = CurrentAssignment(
        told.member_epoch,
        told.previous_member_epoch,
        MemberState(told.state) if known else MemberState.STABLE,
        HeldTasks(
            _epochs(told.active_tasks, told.member_epoch), tasks_in(told.standby_tasks), tasks_in(told.warmup_tasks)
        ),
        HeldTasks(
            _epochs(told.active_tasks_pending_revocation, told.member_epoch),
            tasks_in(told.standby_tasks_pending_revocation),
            tasks_in(told.warmup_tasks_pending_revocation),
        ),
    )
    group.hold(member, current)


def _epochs(told: list[Any], epoch: int) -> dict[Task, int]:
    """The epochs of tasks. Tasks in records from before Kafka 4.3 have no epochs, and are given the member's epoch."""
    return {
        (each.subtopology_id, partition): since
        for each in told
        for partition, since in zip(
            each.partitions, each.assignment_epochs or [epoch] * len(each.partitions), strict=False
        )
    }


_READERS = {
    GROUP_EPOCH: _read_epoch,
    TOPOLOGY: _read_topology,
    MEMBER: _read_member,
    TARGET_EPOCH: _read_target_epoch,
    TARGET: _read_target,
    CURRENT: _read_current,
}
