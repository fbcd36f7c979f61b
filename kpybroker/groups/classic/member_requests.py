"""Executes SyncGroup, Heartbeat and LeaveGroup of classic groups. Errors are checked in Kafka's order."""

from __future__ import annotations

from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.classic.group import ClassicGroup, GroupState
from kpybroker.groups.classic.rebalance import Rebalance, given_assignment, park_sync, refused_sync
from kpybroker.groups.ground.commands import Heartbeat, Leave
from kpybroker.groups.ground.step import Step
from kpybroker.wire.rpc import leave_group, sync_group


class MemberRequests:
    """Executes the requests of members, with the transitions in `Rebalance`."""

    def __init__(self, rebalance: Rebalance) -> None:
        self._rebalance = rebalance

    def sync(self, group: ClassicGroup, request: sync_group.Request, ticket: Any, step: Step) -> None:
        """Respond to a SyncGroup or park it. The leader's SyncGroup completes all parked ones."""
        code = _sync_refusal(group, request)
        if code is not None:
            step.answer(ticket, refused_sync(code))
            return
        member = group.members[request.member_id]
        self._rebalance.synced(group, member)
        if group.state is GroupState.STABLE:
            self._rebalance.renew_session(group, member, step.now_ms)
            step.answer(ticket, given_assignment(group, member))
            return
        park_sync(member, ticket, step)
        if group.leader == request.member_id:
            assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
            self._rebalance.assign(group, assignments, step)

    def heartbeat(self, group: ClassicGroup, command: Heartbeat, step: Step) -> ErrorCode:
        """Renew the member's session."""
        try:
            group.validate(command.member_id, command.instance_id)
        except KafkaError as refusal:
            return refusal.code
        if command.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._rebalance.renew_session(group, group.members[command.member_id], step.now_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, group: ClassicGroup, command: Leave, step: Step) -> list[ErrorCode]:
        """Remove members by their member id, or static members by their instance id alone."""
        codes = [self._leave(group, identity, step) for identity in command.members]
        if ErrorCode.NONE in codes:
            self._rebalance.after_removal(group, step)
        return codes

    def _leave(self, group: ClassicGroup, identity: leave_group.MemberIdentity, step: Step) -> ErrorCode:
        member_id = identity.member_id
        instance_id = identity.group_instance_id
        timer = group.pending_join.pop(member_id, None)
        if timer is not None:
            timer.cancel()
            return ErrorCode.NONE
        if not member_id and instance_id is not None:
            member_id = group.instances.get(instance_id, "")
        try:
            group.validate(member_id, instance_id)
        except KafkaError as refusal:
            return refusal.code
        self._rebalance.remove_member(group, group.members[member_id], step)
        return ErrorCode.NONE


def _sync_refusal(group: ClassicGroup, request: sync_group.Request) -> ErrorCode | None:
    try:
        group.validate(request.member_id, request.group_instance_id)
    except KafkaError as refusal:
        return refusal.code
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if _differ(request.protocol_type, group.protocol_type) or _differ(request.protocol_name, group.protocol):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return None


def _differ(said: str | None, group_has: str | None) -> bool:
    """Whether the values differ. Clients before v5 do not send the value, which then counts as equal."""
    return said is not None and group_has is not None and said != group_has
