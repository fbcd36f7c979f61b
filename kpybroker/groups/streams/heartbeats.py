"""StreamsGroupHeartbeat (KIP-1071): a member joins, sends its topology and its tasks, receives its tasks, and leaves.

Errors are checked in Kafka's order, and before anything changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import StreamsBeat, StreamsHeartbeat
from kpybroker.groups.ground.step import Step, record_bytes
from kpybroker.groups.streams import records
from kpybroker.groups.streams.configuration import ConfiguredTopology, Problem, configured
from kpybroker.groups.streams.description import partitions_by_endpoint
from kpybroker.groups.streams.group import JOIN, LEAVE, MemberMetadata, StreamsGroup, StreamsMember
from kpybroker.groups.streams.tasks import Tasks, task_ids, tasks_in
from kpybroker.groups.streams.topology import Topology, topology_of
from kpybroker.groups.streams.transitions import Transitions
from kpybroker.wire.rpc.streams_group_heartbeat import Request, Response, Status, TaskIds

STALE_TOPOLOGY, SHUTDOWN_APPLICATION = 0, 4
RECORDS_BESIDE, RECORD_BESIDE_BYTES = 5, 64
"""The number of records that are written in addition to the member's record and the topology (epoch and target epoch of
the group, target and current assignment of the member), and the size of each with few tasks."""


class _Checked(NamedTuple):
    """The changes that a validated heartbeat will make. The group is still unchanged."""

    topology: Topology
    is_new_topology: bool
    found: ConfiguredTopology
    metadata_hash: int


class Heartbeats:
    """Responds to heartbeats, with the transitions in `Transitions`.

    - find: the group of a heartbeat that does not join. Raises GROUP_ID_NOT_FOUND.
    - find_or_begin: the group of a heartbeat that joins, or a new one, which is not registered yet.
    - register: registers a new group.
    """

    def __init__(
        self,
        steps: Transitions,
        find: Callable[[str], StreamsGroup],
        find_or_begin: Callable[[str], StreamsGroup],
        register: Callable[[StreamsGroup, Step], bool],
    ) -> None:
        self._steps = steps
        self._find = find
        self._find_or_begin = find_or_begin
        self._register = register

    def beat(self, command: StreamsHeartbeat, step: Step) -> StreamsBeat:
        """Raises KafkaError with Kafka's code and message."""
        request = command.request
        if request.member_epoch <= LEAVE:
            return self._leave(request, step)
        joins = request.member_epoch == JOIN
        group = self._find_or_begin(request.group_id) if joins else self._find(request.group_id)
        if joins:
            self._check_room(group)
            member = group.members.get(request.member_id) or StreamsMember(request.member_id)
        else:
            member = group.member(request.member_id)
            _check_epoch(member, request.member_epoch, _owned(request))
        checked = self._checked(group, request)
        metadata = _metadata(member, command)
        self._check_size(group, request, metadata, checked)
        is_new = self._register(group, step)
        return self._stay(group, member, request, metadata, checked, is_new, step)

    # -- checks ---------------------------------------------------------------------------------------------------

    def _check_room(self, group: StreamsGroup) -> None:
        limit = self._steps.settings.streams_max_size
        if len(group.members) >= limit:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The streams group has reached its maximum capacity of {limit} members.",
            )

    def _checked(self, group: StreamsGroup, request: Request) -> _Checked:
        """Raises INVALID_REQUEST, STREAMS_INVALID_TOPOLOGY."""
        topology, is_new = group.topology, False
        if request.topology is not None:
            told = topology_of(request.topology)
            if topology is None:
                topology, is_new = told, True
            elif told.epoch >= topology.epoch and told != topology:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
        assert topology is not None, "members join with a topology"
        image = self._steps.image()
        told_hash, found = group.metadata_hash, group.configured
        if found is None or is_new or group.seen is not image:
            told_hash = self._steps.metadata_hash(topology)
            if found is None or is_new or told_hash != group.metadata_hash:
                found = configured(topology, image)
        if found.is_ready and found.subtopologies is not None:
            for rows in (request.active_tasks, request.standby_tasks, request.warmup_tasks):
                _check_tasks({name: each.task_count for name, each in found.subtopologies.items()}, rows or ())
        return _Checked(topology, is_new, found, told_hash)

    def _check_size(self, group: StreamsGroup, request: Request, metadata: MemberMetadata, checked: _Checked) -> None:
        """Raises UNKNOWN_SERVER_ERROR, as Kafka does, if the topology or the member is too large for a batch."""
        limit_bytes = self._steps.settings.max_batch_bytes
        member = records.member_record(group.group_id, request.member_id, metadata)
        size_bytes = record_bytes(member) + RECORDS_BESIDE * (len(member.key or b"") + RECORD_BESIDE_BYTES)
        if checked.is_new_topology:
            size_bytes += record_bytes(records.topology_record(group.group_id, checked.topology))
        if size_bytes > limit_bytes:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"The member and its topology take {size_bytes} bytes, but a batch may have at most {limit_bytes} "
                "(message.max.bytes).",
            )

    # -- members --------------------------------------------------------------------------------------------------

    def _stay(
        self,
        group: StreamsGroup,
        member: StreamsMember,
        request: Request,
        metadata: MemberMetadata,
        checked: _Checked,
        is_new: bool,
        step: Step,
    ) -> StreamsBeat:
        was_empty, had = not group.members, member.current.assigned
        changed = self._adopt(group, member, metadata, checked, step)
        self._steps.refresh(group, step, changed=changed, told=checked.metadata_hash)
        if was_empty:
            self._steps.delay_first(group, step.now_ms)
        delayed = self._steps.retarget(group, step)
        self._steps.reconcile(group, member, _owned(request), step)
        self._steps.begin_session(group, member, step.now_ms)
        if request.shutdown_application:
            group.shut_down(member.member_id)
        response = Response(
            member_id=member.member_id,
            member_epoch=member.current.epoch,
            heartbeat_interval_ms=self._steps.heartbeat_interval_ms(group.group_id),
            status=_status(group, member, delayed),
        )
        endpoint_epoch = group.endpoint_epoch
        has_changed = request.member_epoch == JOIN or had != member.current.assigned
        if has_changed or not _has_heard(member, _owned(request)):
            _show_tasks(response, member)
        if has_changed and metadata.endpoint is not None:
            endpoint_epoch += 1
            if not is_new:  # a group begins with epoch 0, as in Kafka
                group.tasks_moved()
        if endpoint_epoch != request.endpoint_information_epoch:
            response.partitions_by_user_endpoint = partitions_by_endpoint(group, member, self._steps.image())
        response.endpoint_information_epoch = group.endpoint_epoch
        return StreamsBeat(response, checked.found.missing)

    def _adopt(
        self, group: StreamsGroup, member: StreamsMember, metadata: MemberMetadata, checked: _Checked, step: Step
    ) -> bool:
        """Adopt the fields of the heartbeat. Returns whether the member has changed."""
        changed = member.member_id not in group.members or metadata != member.metadata
        if changed:
            member.update(metadata)
            group.add(member)
            step.write(records.member_record(group.group_id, member.member_id, metadata))
        if checked.is_new_topology:
            group.adopt(checked.topology)
            step.write(records.topology_record(group.group_id, checked.topology))
        group.configure(checked.found, self._steps.image())
        return changed

    def _leave(self, request: Request, step: Step) -> StreamsBeat:
        group = self._find(request.group_id)
        member = group.member(request.member_id)
        if request.shutdown_application:
            group.shut_down(member.member_id)
        self._steps.remove(group, member, step)
        return StreamsBeat(Response(member_id=request.member_id, member_epoch=request.member_epoch), {})


def check_request(request: Request) -> None:
    """The errors that do not depend on the group. Raises INVALID_REQUEST, STREAMS_INVALID_TOPOLOGY."""
    why = _unsupported(request) or _malformed(request)
    if why is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, why)
    for each in request.topology.subtopologies if request.topology is not None else ():
        for topic in each.state_changelog_topics:
            if topic.partitions:
                raise KafkaError(
                    ErrorCode.STREAMS_INVALID_TOPOLOGY,
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                    f"{topic.partitions}.",
                )


def _unsupported(request: Request) -> str | None:
    """The error message for a field that Kafka 4.3 declares in the request but does not support yet, or None."""
    if request.instance_id is not None:
        return "Static membership is not yet supported."
    if request.task_offsets is not None:
        return "TaskOffsets are not supported yet."
    if request.task_end_offsets is not None:
        return "TaskEndOffsets are not supported yet."
    if request.warmup_tasks:
        return "WarmupTasks are not supported yet."
    if request.topology is not None and any(each.source_topic_regex for each in request.topology.subtopologies):
        return "Regular expressions for source topics are not supported yet."
    return None


def _malformed(request: Request) -> str | None:
    tasks = {
        "ActiveTasks": request.active_tasks,
        "StandbyTasks": request.standby_tasks,
        "WarmupTasks": request.warmup_tasks,
    }
    if not request.member_id:
        return "MemberId can't be empty."
    if not request.group_id:
        return "GroupId can't be empty."
    if request.rack_id == "":
        return "RackId can't be empty."
    if request.member_epoch == JOIN:
        if request.rebalance_timeout_ms == -1:
            return "RebalanceTimeoutMs must be provided in first request."
        owned = next((name for name, rows in tasks.items() if rows is None or rows), None)
        if owned is not None:
            return f"{owned} must be empty when (re-)joining."
        if request.topology is None:
            return "Topology must be non-null when (re-)joining."
    elif request.member_epoch < LEAVE - 1:
        return f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -2."
    elif request.member_epoch < LEAVE:
        return "InstanceId can't be null."
    if any(rows is not None for rows in tasks.values()) and any(rows is None for rows in tasks.values()):
        return "If one task-type is non-null, all must be non-null."
    if request.member_epoch != JOIN and request.topology is not None:
        return "Topology can only be provided when (re-)joining."
    return None


def _check_tasks(counts: dict[str, int], rows: Iterable[TaskIds]) -> None:
    """Raises INVALID_REQUEST."""
    for row in rows:
        count = counts.get(row.subtopology_id)
        if count is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Subtopology {row.subtopology_id} does not exist in the topology."
            )
        for partition in row.partitions:
            if not 0 <= partition < count:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Task {partition} for subtopology {row.subtopology_id} is invalid. Number of tasks for this "
                    f"subtopology: {count}",
                )


def _check_epoch(member: StreamsMember, epoch: int, owned: Tasks | None) -> None:
    """Raises FENCED_MEMBER_EPOCH. A member may be one epoch behind if it missed the last response, provided that its
    tasks are part of its assignment."""
    current = member.current
    if epoch == current.epoch:
        return
    unheard = epoch == current.previous_epoch and owned is not None and current.assigned.includes(owned)
    if epoch > current.epoch or not unheard:
        size = "greater" if epoch > current.epoch else "smaller"
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The streams group member has a {size} member epoch ({epoch}) than the one known by the group "
            f"coordinator ({current.epoch}). The member must abandon all its partitions and rejoin.",
        )


def _metadata(member: StreamsMember, command: StreamsHeartbeat) -> MemberMetadata:
    """The member's metadata after the heartbeat. A null field of the request keeps the previous value."""
    request, before = command.request, member.metadata
    timeout_ms, endpoint, tags = request.rebalance_timeout_ms, request.user_endpoint, request.client_tags
    return MemberMetadata(
        before.rack_id if request.rack_id is None else request.rack_id,
        command.client_id,
        command.client_host,
        before.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        before.topology_epoch if request.topology is None else request.topology.epoch,
        before.process_id if request.process_id is None else request.process_id,
        before.endpoint if endpoint is None else (endpoint.host, endpoint.port),
        before.tags if tags is None else {each.key: each.value for each in tags},
    )


def _owned(request: Request) -> Tasks | None:
    if request.active_tasks is None or request.standby_tasks is None or request.warmup_tasks is None:
        return None
    return Tasks(tasks_in(request.active_tasks), tasks_in(request.standby_tasks), tasks_in(request.warmup_tasks))


def _has_heard(member: StreamsMember, owned: Tasks | None) -> bool:
    """Whether the request does not contradict the member's tasks. If it contains other tasks, the response with the
    member's tasks may have been lost. (Apache Kafka does not send them again.)"""
    assigned = member.current.assigned
    return owned is None or owned == Tasks(frozenset(assigned.active), assigned.standby, assigned.warmup)


def _show_tasks(response: Response, member: StreamsMember) -> None:
    assigned = member.current.assigned
    response.active_tasks = task_ids(TaskIds, assigned.active)
    response.standby_tasks = task_ids(TaskIds, assigned.standby)
    response.warmup_tasks = task_ids(TaskIds, assigned.warmup)


def _status(group: StreamsGroup, member: StreamsMember, delayed: Problem | None) -> list[Status]:
    """The reasons why the application cannot process records, in Kafka's order."""
    assert group.topology is not None
    assert group.configured is not None
    problems = [delayed, group.configured.problem]
    if member.metadata.topology_epoch < group.topology.epoch:
        problems.insert(
            0,
            Problem(
                STALE_TOPOLOGY,
                f"The member's topology epoch {member.metadata.topology_epoch} is behind the group's topology epoch "
                f"{group.topology.epoch}.",
            ),
        )
    if group.shutdown_by is not None:
        problems.append(
            Problem(
                SHUTDOWN_APPLICATION,
                f"Streams group member {group.shutdown_by} encountered a fatal error and requested a shutdown for the "
                "entire application.",
            )
        )
    return [Status(status_code=each.code, status_detail=each.detail) for each in problems if each is not None]
