"""ShareGroupHeartbeat (KIP-932): a member joins, sends its subscription, receives its assignment, and leaves.

Errors are checked in Kafka's order.
"""

from __future__ import annotations

from collections.abc import Callable

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import ShareHeartbeat
from kpybroker.groups.ground.step import Step, record_bytes
from kpybroker.groups.share import records
from kpybroker.groups.share.group import JOIN, LEAVE, ShareGroup, ShareMember
from kpybroker.groups.share.transitions import Transitions
from kpybroker.metadata.hashing import java_length
from kpybroker.wire.rpc.share_group_heartbeat import Assignment, Request, Response, TopicPartitions

MEMBER_ID_MAX = 36
"""The longest member id: a UUID's text."""


class Heartbeats:
    """Responds to heartbeats, with the transitions in `Transitions`.

    - find: the group of a heartbeat that does not join. Raises GROUP_ID_NOT_FOUND.
    - find_or_make: the group of a heartbeat that joins, created if needed.
    """

    def __init__(
        self,
        steps: Transitions,
        find: Callable[[str], ShareGroup],
        find_or_make: Callable[[str, Step], ShareGroup],
    ) -> None:
        self._steps = steps
        self._find = find
        self._find_or_make = find_or_make

    def beat(self, command: ShareHeartbeat, step: Step) -> Response:
        """Raises KafkaError with Kafka's code and message."""
        request = command.request
        why = _malformed(request)
        if why is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, why)
        if request.member_epoch == JOIN:
            self._check_size(ShareMember(request.member_id), command)
            group = self._find_or_make(request.group_id, step)
        else:
            group = self._find(request.group_id)
        if request.member_epoch == LEAVE:
            self._steps.remove(group, group.member(request.member_id), step)
            return Response(member_id=request.member_id, member_epoch=LEAVE)
        return self._stay(group, command, step)

    def _stay(self, group: ShareGroup, command: ShareHeartbeat, step: Step) -> Response:
        request = command.request
        member = self._known(group, request)
        if member is None:
            self._check_room(group)
            member = ShareMember(request.member_id)
        self._check_size(member, command)
        had = member.assigned
        changed = self._update(group, member, command, step)
        self._steps.refresh(group, step, changed=changed)
        self._steps.retarget(group, step)
        self._steps.reconcile(group, member, step)
        self._steps.begin_session(group, member, step.now_ms)
        self._steps.initialize_missing(group, step)
        response = Response(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._steps.heartbeat_interval_ms(group.group_id),
        )
        if request.member_epoch == JOIN or request.subscribed_topic_names is not None or had != member.assigned:
            response.assignment = _assignment(member)
        return response

    def _known(self, group: ShareGroup, request: Request) -> ShareMember | None:
        """The member; None for a new one. Raises the same refusals as Kafka."""
        if request.member_epoch == JOIN:
            return group.members.get(request.member_id)
        member = group.member(request.member_id)
        _check_epoch(member, request.member_epoch)
        return member

    def _check_room(self, group: ShareGroup) -> None:
        most = self._steps.settings.share_max_size
        if len(group.members) >= most:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The share group has reached its maximum capacity of {most} members.",
            )

    def _check_size(self, member: ShareMember, command: ShareHeartbeat) -> None:
        """Raises UNKNOWN_SERVER_ERROR, as Kafka does, if a member is too large for a batch."""
        names = command.request.subscribed_topic_names
        if names is None:
            return
        limit_bytes = self._steps.settings.max_batch_bytes
        size_bytes = len(names) + sum(map(len, names))
        if size_bytes <= limit_bytes:
            said = member.copied()
            _take_over(said, command)
            size_bytes = 2 * record_bytes(records.member_record(command.request.group_id, said))
        if size_bytes > limit_bytes:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"The member's subscription takes {size_bytes} bytes with the group's other records, but a batch "
                f"may have at most {limit_bytes} (message.max.bytes).",
            )

    def _update(self, group: ShareGroup, member: ShareMember, command: ShareHeartbeat, step: Step) -> bool:
        """Adopt the fields of the heartbeat. Returns whether the subscription has changed."""
        said, names = member.said(), frozenset(member.names)
        _take_over(member, command)
        is_new = member.member_id not in group.members
        group.members[member.member_id] = member
        if is_new or member.said() != said:
            step.write(records.member_record(group.group_id, member))
        return is_new or frozenset(member.names) != names


def _take_over(member: ShareMember, command: ShareHeartbeat) -> None:
    request = command.request
    rack_id = member.rack_id if request.rack_id is None else request.rack_id
    member.update(rack_id, command.client_id, command.client_host, request.subscribed_topic_names)


def _malformed(request: Request) -> str | None:
    if not request.group_id:
        return "GroupId can't be empty."
    if not request.member_id:
        return "MemberId can't be empty."
    if java_length(request.member_id) > MEMBER_ID_MAX:
        return f"MemberId has more than {MEMBER_ID_MAX} characters."
    if request.rack_id == "":
        return "RackId can't be empty."
    if request.member_epoch == JOIN and not request.subscribed_topic_names:
        return "SubscribedTopicNames must be set in first request."
    if request.member_epoch < LEAVE:
        return "MemberEpoch is invalid."
    return None


def _check_epoch(member: ShareMember, epoch: int) -> None:
    """Raises FENCED_MEMBER_EPOCH. The previous epoch is also valid, because the last response may have been lost."""
    if epoch in (member.epoch, member.previous_epoch):
        return
    if epoch > member.epoch:
        why = f"has a greater member epoch ({epoch}) than the one known by the group coordinator ({member.epoch})."
    else:
        why = (
            f"has a smaller member epoch ({epoch}) than the one known by the group coordinator ({member.epoch}), and "
            f"it does not match the previous member epoch ({member.previous_epoch})."
        )
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The share group member {why} The member must abandon all its partitions and rejoin.",
    )


def _assignment(member: ShareMember) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in records.by_topic(member.assigned).items()
        ]
    )
