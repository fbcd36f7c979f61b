"""Executes ConsumerGroupHeartbeat (KIP-848), with which members join, subscribe, receive partitions and leave.

Errors are checked in Kafka's order.
"""

from __future__ import annotations

from collections.abc import Callable

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.consumer import records
from kpybroker.groups.consumer.group import JOIN, LEAVE, LEAVE_STATIC, ConsumerGroup, ConsumerMember
from kpybroker.groups.consumer.subscription_regex import compiled
from kpybroker.groups.consumer.transitions import Transitions
from kpybroker.groups.ground.commands import ConsumerHeartbeat
from kpybroker.groups.ground.step import Step, record_bytes
from kpybroker.topics import TopicIdPartition
from kpybroker.wire.rpc.consumer_group_heartbeat import Assignment, Request, Response, TopicPartitions

RECORDS_BESIDE, RECORD_BESIDE_BYTES = 4, 64
"""The number of records that are written besides the member's record (epoch and target epoch of the group, target and
current assignment of the member), and the size of each of them with few partitions."""


class Heartbeats:
    """Responds to heartbeats, with the transitions in `Transitions`.

    - find: returns the group of a heartbeat that does not join. Raises GROUP_ID_NOT_FOUND.
    - find_or_make: returns the group of a heartbeat that joins, and creates or migrates it if needed.
    """

    def __init__(
        self,
        steps: Transitions,
        find: Callable[[str], ConsumerGroup],
        find_or_make: Callable[[str, Step], ConsumerGroup],
    ) -> None:
        self._steps = steps
        self._find = find
        self._find_or_make = find_or_make

    def beat(self, command: ConsumerHeartbeat, step: Step) -> Response:
        """Execute a heartbeat. Raises KafkaError with Kafka's code and message."""
        request = command.request
        self._check(request)
        if request.member_epoch == JOIN:
            group = self._group_to_join(command, step)
        else:
            group = self._find(request.group_id)
        if request.member_epoch < JOIN:
            return self._leave(group, request, step)
        return self._stay(group, command, step)

    def _group_to_join(self, command: ConsumerHeartbeat, step: Step) -> ConsumerGroup:
        """The group of a heartbeat that joins. Checks the member before a group is created or converted; in an existing
        group, other errors are checked first."""
        request = command.request
        try:
            return self._find(request.group_id)
        except KafkaError:
            if request.subscribed_topic_regex:
                compiled(request.subscribed_topic_regex)
            self._check_size(ConsumerMember(request.member_id, request.instance_id), command)
        return self._find_or_make(request.group_id, step)

    # -- errors that do not depend on the group -------------------------------------------------------------------

    def _check(self, request: Request) -> None:
        why = _malformed(request)
        if why is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, why)
        supported = self._steps.settings.consumer_assignors
        if request.server_assignor is not None and request.server_assignor not in supported:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {request.server_assignor} is not supported. "
                f"Supported assignors: {', '.join(supported)}.",
            )

    def _check_size(self, member: ConsumerMember, command: ConsumerHeartbeat) -> None:
        """Raises UNKNOWN_SERVER_ERROR, as Kafka does, if a member is too large for a batch of the log."""
        request = command.request
        names = request.subscribed_topic_names
        if names is None and request.subscribed_topic_regex is None:
            return
        limit_bytes = self._steps.settings.max_batch_bytes
        size_bytes = 0 if names is None else len(names) + sum(map(len, names))
        if size_bytes <= limit_bytes:
            said = member.copied()
            _take_over(said, command)
            record = records.member_record(request.group_id, said)
            beside_bytes = RECORDS_BESIDE * (len(record.key or b"") + RECORD_BESIDE_BYTES)
            size_bytes = record_bytes(record) + beside_bytes
        if size_bytes > limit_bytes:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"The member's subscription takes {size_bytes} bytes, but a record batch may have at most "
                f"{limit_bytes} bytes (message.max.bytes).",
            )

    # -- members --------------------------------------------------------------------------------------------------

    def _stay(self, group: ConsumerGroup, command: ConsumerHeartbeat, step: Step) -> Response:
        request = command.request
        owned = _places(request)
        known = self._known(group, request, owned)
        if known is None:
            self._check_room(group)
        if request.subscribed_topic_regex:
            compiled(request.subscribed_topic_regex)
        self._check_size(known or ConsumerMember(request.member_id, request.instance_id), command)
        if known is None:
            member = ConsumerMember(request.member_id, request.instance_id)
        elif known.member_id != request.member_id:
            member = self._steps.replace(group, known, request.member_id, step)
        else:
            member = known
        had = frozenset(member.current.assigned)
        changed = self._update(group, member, command, step)
        self._steps.refresh(group, step, changed=changed)
        self._steps.try_again(group, command.may_describe, step.now_ms)
        self._steps.retarget(group, step)
        self._steps.reconcile(group, member, owned, step)
        self._steps.begin_session(group, member, step.now_ms)
        response = Response(
            member_id=member.member_id,
            member_epoch=member.current.epoch,
            heartbeat_interval_ms=self._steps.heartbeat_interval_ms(group.group_id),
        )
        if request.member_epoch == JOIN or _is_full(request) or had != member.current.assigned.keys():
            response.assignment = _assignment(member)
        return response

    def _known(
        self, group: ConsumerGroup, request: Request, owned: frozenset[TopicIdPartition] | None
    ) -> ConsumerMember | None:
        """The member, or the previous member with its instance id; None for a new member. Raises Kafka's errors."""
        member_id, instance_id = request.member_id, request.instance_id
        if request.member_epoch == JOIN:
            if instance_id is None:
                return group.members.get(member_id)
            earlier_id = group.instances.get(instance_id)
            if earlier_id is None:
                return group.members.get(member_id)
            earlier = group.members[earlier_id]
            if earlier.classic is None and earlier.current.epoch != LEAVE_STATIC:
                raise KafkaError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
                    f"instance id is owned by {earlier_id}.",
                )
            return earlier
        member = group.member(member_id) if instance_id is None else group.check_instance(member_id, instance_id)
        if member.classic is not None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} uses the classic protocol.")
        _check_epoch(member, request.member_epoch, owned)
        return member

    def _check_room(self, group: ConsumerGroup) -> None:
        limit = self._steps.settings.consumer_max_size
        if len(group.members) >= limit:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )

    def _update(self, group: ConsumerGroup, member: ConsumerMember, command: ConsumerHeartbeat, step: Step) -> bool:
        """Update the member from its request. Returns whether its subscription has changed."""
        request = command.request
        before, regex_before, names_before = member.said(), member.regex, set(member.names)
        if request.instance_id is not None:
            group.name_instance(member, request.instance_id)
        _take_over(member, command)
        if member.member_id not in group.members:
            group.add(member)
        elif member.said() == before:
            return False
        step.write(records.member_record(group.group_id, member))
        changed = set(member.names) != names_before
        if member.regex != regex_before:
            changed = changed or bool(regex_before) or member.regex in group.resolved
            if member.regex and member.regex not in group.resolved:
                self._steps.resolve(group, step.now_ms, command.may_describe)
            self._steps.drop_unused(group, regex_before, step)
        return changed

    # -- leaving --------------------------------------------------------------------------------------------------

    def _leave(self, group: ConsumerGroup, request: Request, step: Step) -> Response:
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = group.check_instance(request.member_id, request.instance_id)
        if request.member_epoch == LEAVE:
            self._steps.remove(group, [member], step)
        else:
            self._steps.leave_for_a_while(group, member, step)
        return Response(member_id=request.member_id, member_epoch=request.member_epoch)


def _take_over(member: ConsumerMember, command: ConsumerHeartbeat) -> None:
    """Set the member's fields from a request. A null field keeps the previous value."""
    request = command.request
    timeout_ms = request.rebalance_timeout_ms
    member.update(
        command.client_id,
        command.client_host,
        member.rack_id if request.rack_id is None else request.rack_id,
        member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        member.server_assignor if request.server_assignor is None else request.server_assignor,
    )
    names = request.subscribed_topic_names
    member.subscribe(None if names is None else dict.fromkeys(names), request.subscribed_topic_regex)
    member.use_classic(None)


def _malformed(request: Request) -> str | None:
    if not request.group_id:
        return "GroupId can't be empty."
    if not request.member_id:
        return "MemberId can't be empty."
    if request.instance_id == "":
        return "InstanceId can't be empty."
    if request.rack_id == "":
        return "RackId can't be empty."
    if request.member_epoch == JOIN:
        if request.rebalance_timeout_ms == -1:
            return "RebalanceTimeoutMs must be provided in first request."
        if request.topic_partitions is None or request.topic_partitions:
            return "TopicPartitions must be empty when (re-)joining."
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    elif request.member_epoch == LEAVE_STATIC:
        if request.instance_id is None:
            return "InstanceId can't be null."
    elif request.member_epoch < LEAVE_STATIC:
        return "MemberEpoch is invalid."
    return None


def _check_epoch(member: ConsumerMember, epoch: int, owned: frozenset[TopicIdPartition] | None) -> None:
    """Raises FENCED_MEMBER_EPOCH. A member may be one epoch behind if it missed the last response, provided that its
    partitions are part of its assignment."""
    current = member.current
    if epoch == current.epoch:
        return
    unheard = epoch == current.previous_epoch and owned is not None and owned <= current.assigned.keys()
    if epoch > current.epoch or not unheard:
        size = "greater" if epoch > current.epoch else "smaller"
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {size} member epoch ({epoch}) than the one known by the group "
            f"coordinator ({current.epoch}). The member must abandon all its partitions and rejoin.",
        )


def _is_full(request: Request) -> bool:
    """Whether the request has all fields: a client sends them all when it does not know the broker's state."""
    subscribes = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms != -1 and subscribes and request.topic_partitions is not None


def _places(request: Request) -> frozenset[TopicIdPartition] | None:
    if request.topic_partitions is None:
        return None
    return frozenset(
        (bytes(each.topic_id), partition) for each in request.topic_partitions for partition in each.partitions
    )


def _assignment(member: ConsumerMember) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in records.by_topic(member.current.assigned).items()
        ]
    )
