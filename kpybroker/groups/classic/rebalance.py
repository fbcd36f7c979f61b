"""Starts and completes the generations of classic groups, and waits for their members.

`Rebalance` has the transitions that JoinGroup, SyncGroup, LeaveGroup and the timers share; `join_requests` and
`member_requests` execute the requests. Source: the classic group protocol as observed on Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kpybroker.errors import ErrorCode
from kpybroker.groups.classic.group import ClassicGroup, ClassicMember, GroupState
from kpybroker.groups.classic.records import group_record
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.step import Step, record_bytes
from kpybroker.groups.ground.timers import Timer, Timers
from kpybroker.wire.rpc import join_group, sync_group

JoinedMember = join_group.JoinGroupResponseMember


def refused_join(code: ErrorCode, member_id: str) -> join_group.Response:
    return join_group.Response(error_code=code, member_id=member_id, protocol_name=None)


def refused_sync(code: ErrorCode) -> sync_group.Response:
    return sync_group.Response(error_code=code)


def given_assignment(group: ClassicGroup, member: ClassicMember) -> sync_group.Response:
    return sync_group.Response(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )


def current_generation(
    group: ClassicGroup, member: ClassicMember, *, leader: str | None = None, skip_assignment: bool = False
) -> join_group.Response:
    """The JoinGroup response to `member`; the leader's also has the metadata of all members.

    `leader`: another member id to name as the leader if the member must not assign partitions although it is the
    leader.
    """
    members = []
    protocol = group.protocol
    assert protocol is not None
    if leader is None:
        leader = group.leader
        assert leader is not None
        if leader == member.member_id:
            members = [
                JoinedMember(
                    member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata(protocol)
                )
                for each in group.members.values()
            ]
    return join_group.Response(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=protocol,
        leader=leader,
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=members,
    )


class Rebalance:
    """The transitions of groups between generations."""

    def __init__(self, settings: GroupSettings, timers: Timers, new_id: Callable[[], str]) -> None:
        self.settings = settings
        self.timers = timers
        self.new_id = new_id

    # -- sessions -------------------------------------------------------------------------------------------------

    def renew_session(
        self, group: ClassicGroup, member: ClassicMember, now_ms: int, timeout_ms: int | None = None
    ) -> None:
        """Restart the member's session. It lasts `timeout_ms`, by default the member's session timeout."""
        session = member.session or member.session_timer(partial(self._session_over, group, member))
        self.timers.set(session, now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms))

    def _session_over(self, group: ClassicGroup, member: ClassicMember, step: Step) -> None:
        if group.members.get(member.member_id) is not member:
            return
        if member.parked and not member.is_new:
            return  # the member waits for this coordinator, and its session restarts with the response
        self.remove_member(group, member, step)
        self.after_removal(group, step)

    def remove_member(self, group: ClassicGroup, member: ClassicMember, step: Step) -> None:
        """Remove a member and refuse its parked requests. The caller calls `after_removal` next."""
        step.answer(group.take_join(member), refused_join(ErrorCode.UNKNOWN_MEMBER_ID, ""))
        step.answer(member.take_sync(), refused_sync(ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member.member_id)

    def after_removal(self, group: ClassicGroup, step: Step) -> None:
        """Called after members were removed. Starts a new generation, or completes the one that is being prepared."""
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare(group, step)
        else:
            self.maybe_complete_join(group, step)

    # -- joining --------------------------------------------------------------------------------------------------

    def prepare_or_complete(self, group: ClassicGroup, step: Step) -> None:
        if group.state is GroupState.PREPARING_REBALANCE:
            self.maybe_complete_join(group, step)
        else:
            self.prepare(group, step)

    def prepare(self, group: ClassicGroup, step: Step) -> None:
        """Begin a new generation, which every member must join."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.drop_assignment(group, ErrorCode.REBALANCE_IN_PROGRESS, step)
        self._cancel(group.sync_timer)
        first = group.state is GroupState.EMPTY
        group.enter(GroupState.PREPARING_REBALANCE, step.wall_ms)
        if not first:
            self._complete_or_wait(group, step)
            return
        delay_ms = self.settings.group_initial_rebalance_delay_ms
        group.begin_first_wait(0 if delay_ms else step.now_ms + self.settings.first_join_limit_ms)
        if delay_ms:
            remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._wait(group, step, delay_ms, partial(self._first_wait_over, group, delay_ms, remaining_ms))
        else:
            self.pause(group, step)

    def pause(self, group: ClassicGroup, step: Step) -> None:
        """Without an initial delay, wait briefly for other members of a first generation."""
        if group.state is not GroupState.PREPARING_REBALANCE or group.previous_state is not GroupState.EMPTY:
            return
        pause_ms = self.settings.first_join_pause_ms
        if not pause_ms and group.all_joined:
            self.complete_join(group, step)
        elif not self.settings.group_initial_rebalance_delay_ms:
            left_ms = max(group.first_wait_ends_ms - step.now_ms, 0)
            self._wait(group, step, min(pause_ms, left_ms) or left_ms, partial(self._pause_over, group))

    def _pause_over(self, group: ClassicGroup, step: Step) -> None:
        left_ms = group.first_wait_ends_ms - step.now_ms
        if group.all_joined or left_ms <= 0:
            self.complete_join(group, step)
        else:
            self._wait(group, step, left_ms, partial(self._pause_over, group))

    def _first_wait_over(self, group: ClassicGroup, waited_ms: int, remaining_ms: int, step: Step) -> None:
        if not group.member_added or not remaining_ms:
            self.complete_join(group, step)
            return
        group.begin_first_wait()
        delay_ms = min(self.settings.group_initial_rebalance_delay_ms, remaining_ms)
        remaining_ms = max(remaining_ms - waited_ms, 0)
        self._wait(group, step, delay_ms, partial(self._first_wait_over, group, delay_ms, remaining_ms))

    def _complete_or_wait(self, group: ClassicGroup, step: Step) -> None:
        if group.all_joined:
            self.complete_join(group, step)
        else:
            self._wait(group, step, group.rebalance_timeout_ms, partial(self.complete_join, group))

    def _wait(self, group: ClassicGroup, step: Step, wait_ms: int, then: Callable[[Step], None]) -> None:
        self.timers.set(group.join_timer_for(then), step.now_ms + wait_ms)

    def maybe_complete_join(self, group: ClassicGroup, step: Step) -> None:
        """Complete the generation if all members have joined. The first generation also waits for its delay."""
        if group.state is not GroupState.PREPARING_REBALANCE or not group.all_joined:
            return
        if group.previous_state is not GroupState.EMPTY:
            self.complete_join(group, step)
        elif not self.settings.group_initial_rebalance_delay_ms:
            self.pause(group, step)

    def complete_join(self, group: ClassicGroup, step: Step) -> None:
        """End joining: remove dynamic members that have not joined, and begin the generation with the remaining
        members."""
        self._cancel(group.join_timer)
        for member in [each for each in group.members.values() if each.join_ticket is None and not each.instance_id]:
            group.remove(member.member_id)
        if not group.elect_joined_leader() and group.members:
            # only static members are left and none has joined, so wait until their sessions expire
            self._wait(group, step, group.rebalance_timeout_ms, partial(self.complete_join, group))
            return
        group.next_generation(step.wall_ms)
        if group.state is GroupState.EMPTY:
            step.write(group_record(group))
            return
        for member in group.members.values():
            ticket = group.take_join(member)
            if ticket is not None:
                step.answer(ticket, current_generation(group, member))
            self.renew_session(group, member, step.now_ms)
            member.joined()
            group.pending_sync.add(member.member_id)
        sync_timer = group.sync_timer_for(partial(self._sync_wait_over, group))
        self.timers.set(sync_timer, step.now_ms + group.rebalance_timeout_ms)

    # -- assignments ----------------------------------------------------------------------------------------------

    def _sync_wait_over(self, group: ClassicGroup, step: Step) -> None:
        """Remove members that joined but never sent SyncGroup, because they block the group."""
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_sync:
            return
        for member in [each for each in group.members.values() if each.member_id in group.pending_sync]:
            self.remove_member(group, member, step)
        self.prepare(group, step)

    def synced(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Record that the member has sent SyncGroup."""
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            self._cancel(group.sync_timer)

    def assign(self, group: ClassicGroup, assignments: dict[str, bytes], step: Step) -> None:
        """Store the assignment that the leader has sent, and complete all parked SyncGroups. The group is then stable.

        If it is too large for a record, all members receive UNKNOWN_SERVER_ERROR, as in Kafka, and the generation ends.
        """
        for member in group.members.values():
            member.assign(assignments.get(member.member_id, b""))
        if not self.keep(group, step):
            self.drop_assignment(group, ErrorCode.UNKNOWN_SERVER_ERROR, step)
            self.prepare(group, step)
            return
        group.enter(GroupState.STABLE, step.wall_ms)
        for member in group.members.values():
            if member.sync_ticket is not None:
                step.answer(member.take_sync(), given_assignment(group, member))
                self.renew_session(group, member, step.now_ms)

    def drop_assignment(self, group: ClassicGroup, code: ErrorCode, step: Step) -> None:
        """Clear the assignments of this generation; parked SyncGroups are refused with `code`."""
        for member in group.members.values():
            member.assign(b"")
            if member.sync_ticket is not None:
                step.answer(member.take_sync(), refused_sync(code))
                self.renew_session(group, member, step.now_ms)

    def keep(self, group: ClassicGroup, step: Step) -> bool:
        """Write the group's record. Returns False, without a record, if it does not fit into a batch."""
        record = group_record(group)
        if record_bytes(record) > self.settings.max_batch_bytes:
            return False
        step.write(record)
        return True

    @staticmethod
    def _cancel(timer: Timer | None) -> None:
        if timer is not None:
            timer.cancel()


def park_sync(member: ClassicMember, ticket: Any, step: Step) -> None:
    """Park a SyncGroup until the leader's SyncGroup arrives. An earlier one of the same member is refused."""
    step.answer(member.park_sync(ticket), refused_sync(ErrorCode.REBALANCE_IN_PROGRESS))
