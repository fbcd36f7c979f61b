"""Migrates a group with members between the classic and the consumer protocol (KIP-848, "Online migration").

Upgrade: a member of the consumer protocol joins a classic group; the existing members stay, and continue with the
classic protocol. Downgrade: the last member of the consumer protocol leaves; the remaining members form a classic
group, which rebalances. A group without members adopts the protocol of its next member.
"""

from __future__ import annotations

from typing import Protocol

from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.groups.classic.group import CONSUMER, ClassicGroup, ClassicMember, GroupState, named_once
from kpybroker.groups.classic.groups import ClassicGroups
from kpybroker.groups.classic.rebalance import refused_join, refused_sync
from kpybroker.groups.classic.records import group_tombstone
from kpybroker.groups.classic.subscription import Subscription, read_assignment, read_subscription
from kpybroker.groups.consumer import records
from kpybroker.groups.consumer.classic_members import given, owned_places
from kpybroker.groups.consumer.group import NOTHING, ConsumerGroup, ConsumerMember, CurrentAssignment, MemberState
from kpybroker.groups.consumer.transitions import Transitions
from kpybroker.groups.ground.step import Step
from kpybroker.wire.stored.consumer_group import ClassicMemberMetadata, ClassicProtocol

CUSTOM_ASSIGNOR = (
    "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default assignor "
    "before re-attempting the upgrade"
)
"""Kafka's message. An assignor that Kafka does not have needs user data, which the coordinator cannot create."""


class ConsumerGroupStore(Protocol):
    """The groups of the consumer protocol."""

    groups: dict[str, ConsumerGroup]

    def forget(self, group_id: str, step: Step) -> None: ...


class Migration:
    """Converts groups of one protocol into groups of the other protocol."""

    def __init__(self, steps: Transitions, classic: ClassicGroups, consumer: ConsumerGroupStore) -> None:
        self._steps = steps
        self._rebalance = classic.rebalance
        self._classic = classic.groups
        self._consumer = consumer

    # -- upgrade----------------------------------------------------------------------------------------------------

    def upgraded(self, group_id: str, step: Step) -> ConsumerGroup | None:
        """Convert the classic group with this id to a consumer group; None if there is no such group, or it is empty.

        Raises GROUP_ID_NOT_FOUND if it cannot be converted, so that clients report that the group uses another
        protocol.
        """
        classic = self._classic.get(group_id)
        if classic is None:
            return None
        if classic.state is GroupState.EMPTY and not classic.members:
            self._retire(classic, step)
            return None
        said = self._check_upgrade(classic)
        group = ConsumerGroup(group_id)
        group.continue_from(classic.generation)
        for member in classic.members.values():
            self._adopt(group, classic, member, said[member.member_id], step.now_ms)
        self._retire(classic, step)
        self._consumer.groups[group_id] = group
        self._write(group, step)
        return group

    def _check_upgrade(self, classic: ClassicGroup) -> dict[str, Subscription]:
        """The members' subscriptions. Raises GROUP_ID_NOT_FOUND."""
        if not self._steps.settings.may_upgrade:
            raise _no_upgrade(classic, "online upgrade is disabled")
        if classic.protocol_type != CONSUMER:
            raise _no_upgrade(classic, "the group does not use the consumer embedded protocol")
        if len(classic.members) >= self._steps.settings.consumer_max_size:
            raise _no_upgrade(classic, "the group size exceeds the consumer group maximum size")
        try:
            assignments = {each.member_id: read_assignment(each.assignment) for each in classic.members.values()}
            said = {each.member_id: _subscription(each, classic.protocol) for each in classic.members.values()}
        except MalformedFrame:
            raise _no_upgrade(classic, "the embedded consumer protocol is malformed") from None
        if any(each.user_data for each in assignments.values()):
            raise _no_upgrade(classic, CUSTOM_ASSIGNOR)
        return said

    def _adopt(
        self, group: ConsumerGroup, classic: ClassicGroup, known: ClassicMember, said: Subscription, now_ms: int
    ) -> None:
        member = ConsumerMember(known.member_id, known.instance_id, self._current(group, classic, known))
        member.update(known.client_id, known.client_host, said.rack_id, known.rebalance_timeout_ms, None)
        member.subscribe(said.topics, "")
        member.use_classic(
            ClassicMemberMetadata(
                session_timeout_ms=known.session_timeout_ms,
                supported_protocols=[ClassicProtocol(name=name, metadata=data) for name, data in known.protocols],
            )
        )
        group.add(member)
        group.targets[member.member_id] = frozenset(member.current.assigned)
        self._steps.begin_session(group, member, now_ms)

    def _current(self, group: ConsumerGroup, classic: ClassicGroup, known: ClassicMember) -> CurrentAssignment:
        """A classic member's assignment. If two members have the same partition, the first one keeps it."""
        has = owned_places(read_assignment(known.assignment).partitions, self._steps.image())
        free = sorted(place for place in has if place not in group.owners)
        epoch = classic.generation
        return CurrentAssignment(epoch, epoch, MemberState.STABLE, dict.fromkeys(free, epoch))

    def _write(self, group: ConsumerGroup, step: Step) -> None:
        for member in group.members.values():
            step.write(records.member_record(group.group_id, member))
        step.write(records.epoch_record(group))
        for member_id, target in group.targets.items():
            step.write(records.target_record(group.group_id, member_id, target))
        step.write(records.target_epoch_record(group))
        for member in group.members.values():
            step.write(records.current_record(group.group_id, member))

    def _retire(self, classic: ClassicGroup, step: Step) -> None:
        """Delete the classic group. Its waiting members must join again."""
        for member in classic.members.values():
            step.answer(classic.take_join(member), refused_join(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
            step.answer(member.take_sync(), refused_sync(ErrorCode.REBALANCE_IN_PROGRESS))
            if member.session is not None:
                member.session.cancel()
        for timer in (classic.join_timer, classic.sync_timer, *classic.pending_join.values()):
            if timer is not None:
                timer.cancel()
        step.write(group_tombstone(classic.group_id))
        del self._classic[classic.group_id]

    # -- downgrade--------------------------------------------------------------------------------------------------

    def downgrade(self, group: ConsumerGroup, step: Step, *, rebalances: bool) -> bool:
        """Convert a group whose members all use the classic protocol. Returns False if the settings forbid it.

        Each member's assignment is its target assignment. Without a rebalance, the member keeps it in this generation.
        """
        settings = self._steps.settings
        if not settings.may_downgrade or len(group.members) > settings.group_max_size:
            return False
        self._consumer.forget(group.group_id, step)
        classic = ClassicGroup(group.group_id, step.wall_ms)
        for known in group.members.values():
            assert known.classic is not None
            protocols = named_once((each.name, bytes(each.metadata)) for each in known.classic.supported_protocols)
            member = ClassicMember(known.member_id, known.instance_id, known.client_id, known.client_host, protocols)
            member.joined()
            member.set_timeouts(known.classic.session_timeout_ms, known.rebalance_timeout_ms)
            classic.add(member, CONSUMER)
            self._rebalance.renew_session(classic, member, step.now_ms)
        classic.continue_from(group.epoch, step.wall_ms)
        for known in group.members.values():
            member = classic.members[known.member_id]
            target = group.targets.get(known.member_id, NOTHING)
            member.assign(given(target, member.metadata(classic.protocol or ""), self._steps.image()))
        self._classic[group.group_id] = classic
        self._rebalance.keep(classic, step)
        if rebalances:
            self._rebalance.prepare(classic, step)
        return True


def _subscription(member: ClassicMember, protocol: str | None) -> Subscription:
    """A member's subscription for the generation's protocol; before the first generation, for its first protocol."""
    data = member.metadata(protocol) if protocol else member.protocols[0][1] if member.protocols else b""
    return read_subscription(data)


def _no_upgrade(classic: ClassicGroup, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {classic.group_id} to consumer group because {why}.",
    )
