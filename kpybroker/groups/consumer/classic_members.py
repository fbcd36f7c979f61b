"""Executes JoinGroup, SyncGroup, Heartbeat and LeaveGroup of members with the classic protocol in a consumer group.

A group has such members during a migration. For them, the member epoch is the generation. They have no leader, because
the coordinator also assigns their partitions. They must join again (REBALANCE_IN_PROGRESS in a heartbeat response)
whenever they have to revoke a partition or can receive one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.groups.classic.group import CONSUMER, named_once
from kpybroker.groups.classic.subscription import Subscription, build_assignment, read_subscription, version_of
from kpybroker.groups.consumer import records
from kpybroker.groups.consumer.group import NOTHING, ConsumerGroup, ConsumerMember, MemberState
from kpybroker.groups.consumer.transitions import Transitions
from kpybroker.groups.ground.commands import Heartbeat, Join
from kpybroker.groups.ground.step import Step
from kpybroker.metadata.image import Image
from kpybroker.topics import TopicIdPartition
from kpybroker.wire.rpc import join_group, leave_group, sync_group
from kpybroker.wire.stored.consumer_group import ClassicMemberMetadata, ClassicProtocol


class ClassicMembers:
    """Executes the requests of the classic protocol, with the transitions in `Transitions`. Each method raises
    KafkaError."""

    def __init__(self, steps: Transitions) -> None:
        self._steps = steps

    # -- JoinGroup ------------------------------------------------------------------------------------------------

    def join(self, group: ConsumerGroup, command: Join, member_id: str, step: Step) -> join_group.Response:
        """Execute a JoinGroup. `member_id` is used for a member that has none yet. The response is sent at once,
        because no member waits for the others."""
        request = command.request
        self._check_join(group, request)
        known = self._known(group, request)
        if known is None:
            self._check_room(group)
            if not request.member_id and request.group_instance_id is None and command.knows_member_id_first:
                return join_group.Response(
                    error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id, protocol_name=None
                )
        said = _subscription(request)
        if known is None:
            member = ConsumerMember(request.member_id or member_id, request.group_instance_id)
        elif known.member_id != request.member_id:
            member = self._steps.replace(group, known, member_id, step)
        else:
            member = known
        changed = self._update(group, member, command, said, step)
        self._steps.refresh(group, step, changed=changed)
        self._steps.retarget(group, step)
        if member.rebalance is not None:
            member.rebalance.cancel()
        self._steps.reconcile(group, member, _owned(member, said, self._steps.image()), step)
        self._steps.begin_session(group, member, step.now_ms)
        self._steps.wait_for_sync(group, member, step)
        if group.all_classic and known is not None and request.group_instance_id is not None:
            # the last member with the consumer protocol was static, and has rejoined with the classic protocol
            self._steps.on_all_classic(group, step, False)
        return join_group.Response(
            generation_id=member.current.epoch,
            protocol_type=CONSUMER,
            protocol_name=request.protocols[0].name,
            member_id=member.member_id,
        )

    def _check_join(self, group: ConsumerGroup, request: join_group.Request) -> None:
        settings = self._steps.settings
        if not (settings.may_upgrade or settings.may_downgrade):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if request.protocol_type != CONSUMER or not request.protocols:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        offered = {each.name for each in request.protocols}
        for member in group.members.values():
            if member.classic is not None and member.member_id != request.member_id:
                offered &= {each.name for each in member.classic.supported_protocols}
        if not offered:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _known(self, group: ConsumerGroup, request: join_group.Request) -> ConsumerMember | None:
        if request.group_instance_id is None:
            return group.members.get(request.member_id)
        earlier_id = group.instances.get(request.group_instance_id)
        if earlier_id is None:
            if request.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            return None
        if request.member_id and request.member_id != earlier_id:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        return group.members[earlier_id]

    def _check_room(self, group: ConsumerGroup) -> None:
        if len(group.members) >= self._steps.settings.consumer_max_size:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _update(
        self, group: ConsumerGroup, member: ConsumerMember, command: Join, said: Subscription, step: Step
    ) -> bool:
        """Update the member from its request. Returns whether its subscription has changed."""
        request = command.request
        before, names_before, regex_before = member.said(), set(member.names), member.regex
        member.subscribe(dict.fromkeys(said.topics), "")
        # v0 has one timeout for both
        timeout_ms = request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
        member.update(command.client_id, command.client_host, said.rack_id, timeout_ms, None)
        protocols = named_once((each.name, bytes(each.metadata)) for each in request.protocols)
        member.use_classic(
            ClassicMemberMetadata(
                session_timeout_ms=request.session_timeout_ms,
                supported_protocols=[ClassicProtocol(name=name, metadata=metadata) for name, metadata in protocols],
            )
        )
        if member.member_id not in group.members:
            group.add(member)
        elif member.said() == before:
            return False
        step.write(records.member_record(group.group_id, member))
        self._steps.drop_unused(group, regex_before, step)
        return set(member.names) != names_before or bool(regex_before)

    # -- SyncGroup ------------------------------------------------------------------------------------------------

    def sync(self, group: ConsumerGroup, request: sync_group.Request, step: Step) -> sync_group.Response:
        """The member's assignment, without partitions that other members have not released yet."""
        member = self._member(group, request.member_id, request.group_instance_id)
        if request.generation_id != member.current.epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        assert member.classic is not None
        first = member.classic.supported_protocols[0]
        protocol, subscription = first.name, bytes(first.metadata)
        if (request.protocol_type or CONSUMER) != CONSUMER or (request.protocol_name or protocol) != protocol:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if (
            member.current.epoch < group.assignment_epoch
            and member.current.state is not MemberState.UNREVOKED_PARTITIONS
        ):
            self._steps.begin_to_wait(group, member, step)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        if member.sync_wait is not None:
            member.sync_wait.cancel()
        return sync_group.Response(
            protocol_type=CONSUMER,
            protocol_name=protocol,
            assignment=given(member.current.assigned, subscription, self._steps.image()),
        )

    # -- Heartbeat ------------------------------------------------------------------------------------------------

    def beat(self, group: ConsumerGroup, command: Heartbeat, step: Step) -> ErrorCode:
        """Execute a Heartbeat. Returns REBALANCE_IN_PROGRESS if joining again would change the assignment."""
        member = self._member(group, command.member_id, command.instance_id)
        current = member.current
        if command.generation != current.epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        self._steps.begin_session(group, member, step.now_ms)
        self._steps.refresh(group, step, changed=False)
        self._steps.retarget(group, step)
        waits = current.state is MemberState.UNRELEASED_PARTITIONS and self._may_get(group, member)
        if current.epoch < group.assignment_epoch or current.state is MemberState.UNREVOKED_PARTITIONS or waits:
            self._steps.begin_to_wait(group, member, step)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    @staticmethod
    def _may_get(group: ConsumerGroup, member: ConsumerMember) -> bool:
        """Whether all partitions that the member waits for have been released."""
        target = group.targets.get(member.member_id, NOTHING)
        return all(group.is_free(place, member) for place in target)

    def _member(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
        member = group.member(member_id) if instance_id is None else group.check_instance(member_id, instance_id)
        if member.classic is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the member uses the consumer protocol")
        return member

    # -- LeaveGroup -----------------------------------------------------------------------------------------------

    def leave(
        self, group: ConsumerGroup, identities: Sequence[leave_group.MemberIdentity], step: Step
    ) -> list[ErrorCode]:
        """Remove members of either protocol by their member id, or static members by their instance id alone."""
        codes = []
        leaving: dict[str, ConsumerMember] = {}
        for each in identities:
            try:
                member = _leaving(group, each)
                if member.member_id in leaving:
                    raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
                leaving[member.member_id] = member
                codes.append(ErrorCode.NONE)
            except KafkaError as refusal:
                codes.append(refusal.code)
        if leaving:
            self._steps.remove(group, list(leaving.values()), step)
        return codes


def _subscription(request: join_group.Request) -> Subscription:
    """The subscription in a JoinGroup. Raises UNKNOWN_SERVER_ERROR if it is malformed, as Kafka does."""
    try:
        return read_subscription(bytes(request.protocols[0].metadata))
    except MalformedFrame as malformed:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(malformed)) from None


def _leaving(group: ConsumerGroup, identity: leave_group.MemberIdentity) -> ConsumerMember:
    instance_id = identity.group_instance_id
    if instance_id is None:
        return group.member(identity.member_id)
    return group.check_instance(identity.member_id or group.instances.get(instance_id, ""), instance_id)


def _owned(member: ConsumerMember, said: Subscription, image: Image) -> frozenset[TopicIdPartition]:
    """The partitions that a member owns. A member that sends no partitions, or partitions of an earlier generation, has
    revoked all of them."""
    if said.generation not in (-1, member.current.epoch):
        return NOTHING
    return owned_places(said.owned, image)


def owned_places(topics: Mapping[str, Sequence[int]], image: Image) -> frozenset[TopicIdPartition]:
    """The owned partitions whose topics exist."""
    found = ((image.topic(name), partitions) for name, partitions in topics.items())
    return frozenset(
        (topic.id, partition) for topic, partitions in found if topic is not None for partition in partitions
    )


def given(places: Iterable[TopicIdPartition], subscription: bytes, image: Image) -> bytes:
    """A classic member's assignment, in the version of its own subscription. The subscription may be malformed, because
    a member has several protocols and only one of their subscriptions was parsed earlier."""
    topics: dict[str, Any] = {}
    for topic_id, partitions in records.by_topic(places).items():
        topic = image.topic_by_id(topic_id)
        if topic is not None:
            topics[topic.name] = partitions
    return build_assignment(version_of(subscription), topics)
