"""Executes JoinGroup: checks members, assigns member ids, and starts a new generation if one is needed.

- v4+ (KIP-394): a dynamic member first receives an id with MEMBER_ID_REQUIRED, and joins with this id.
- v5+ (KIP-345): a static member that rejoins without a member id replaces the member with its instance id. If the group
  is stable and keeps its protocol, there is no new generation. From v9 (KIP-814), the response then says whether the
  member is the leader.
- If a member repeats its JoinGroup unchanged while the group completes a rebalance, or is a follower in a stable group,
  the response has the current generation.
"""

from __future__ import annotations

from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.classic.group import ClassicGroup, ClassicMember, GroupState, Protocols, named_once
from kpybroker.groups.classic.rebalance import Rebalance, current_generation, refused_join, refused_sync
from kpybroker.groups.ground.commands import Join
from kpybroker.groups.ground.settings import NEW_MEMBER_JOIN_TIMEOUT_MS
from kpybroker.groups.ground.step import Step
from kpybroker.groups.ground.timers import Timer
from kpybroker.wire.rpc import join_group

MEMBER_ID_PREFIX_CHARS = 1000
"""The most characters of a client or instance id that become part of a member id: in a record, a member id has at most
32,767 bytes."""


class JoinRequests:
    """Executes JoinGroup, with the transitions in `Rebalance`."""

    def __init__(self, rebalance: Rebalance) -> None:
        self._rebalance = rebalance
        self._settings = rebalance.settings

    def refusal(self, request: join_group.Request) -> ErrorCode | None:
        """The error code of a request that no group accepts, else None."""
        settings = self._settings
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not (
            settings.group_min_session_timeout_ms <= request.session_timeout_ms <= settings.group_max_session_timeout_ms
        ):
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if sum(len(each.name) + len(each.metadata) + 8 for each in request.protocols) > settings.max_batch_bytes:
            return ErrorCode.INVALID_REQUEST  # such a member does not fit into a group record
        return None

    def join(self, group: ClassicGroup, command: Join, ticket: Any, step: Step) -> None:
        """Respond to a JoinGroup or park it."""
        request = command.request
        member_id = request.member_id
        if not self._has_room(group, member_id):
            if member_id in group.members:
                self._rebalance.remove_member(group, group.members[member_id], step)
                self._rebalance.after_removal(group, step)
            step.answer(ticket, refused_join(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
            return
        protocols = named_once((each.name, each.metadata) for each in request.protocols)
        if not group.supports(request.protocol_type, protocols):
            step.answer(ticket, refused_join(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
        elif member_id:
            self._known(group, command, protocols, ticket, step)
        elif request.group_instance_id is not None:
            self._static(group, command, protocols, ticket, step)
        elif command.knows_member_id_first:
            self._hand_out_id(group, command, ticket, step)
        else:
            self._add(group, command, self.new_member_id(command), protocols, ticket, step)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        limit = self._settings.group_max_size
        if group.state is GroupState.EMPTY:
            return True
        if group.state is GroupState.PREPARING_REBALANCE:
            member = group.members.get(member_id)
            return group.waiting < limit or (member is not None and member.join_ticket is not None)
        return len(group.members) < limit or member_id in group.members

    def new_member_id(self, command: Join) -> str:
        """Create an id for a member that has none."""
        whose = command.request.group_instance_id or command.client_id
        return f"{whose[:MEMBER_ID_PREFIX_CHARS]}-{self._rebalance.new_id()}"

    def _hand_out_id(self, group: ClassicGroup, command: Join, ticket: Any, step: Step) -> None:
        if len(group.pending_join) >= self._settings.max_pending_members:
            step.answer(ticket, refused_join(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
            return
        member_id = self.new_member_id(command)

        def forget(late: Step) -> None:
            if group.pending_join.pop(member_id, None) is not None:
                self._rebalance.maybe_complete_join(group, late)

        timer = group.pending_join[member_id] = Timer(forget)
        self._rebalance.timers.set(timer, step.now_ms + command.request.session_timeout_ms)
        step.answer(ticket, refused_join(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        self._rebalance.pause(group, step)

    def _add(
        self, group: ClassicGroup, command: Join, member_id: str, protocols: Protocols, ticket: Any, step: Step
    ) -> None:
        request = command.request
        member = ClassicMember(
            member_id, request.group_instance_id, command.client_id, command.client_host, protocols, ticket
        )
        member.set_timeouts(request.session_timeout_ms, request.rebalance_timeout_ms)
        group.add_new(member, request.protocol_type)
        self._rebalance.renew_session(group, member, step.now_ms, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance.prepare_or_complete(group, step)

    def _update(
        self, group: ClassicGroup, member: ClassicMember, command: Join, protocols: Protocols, ticket: Any, step: Step
    ) -> None:
        """Execute the JoinGroup of a member that joins again, with new protocols and timeouts."""
        request = command.request
        group.set_protocols(member, protocols)
        member.set_timeouts(request.session_timeout_ms, request.rebalance_timeout_ms)
        # the client has probably given up the member's earlier JoinGroup; if not, it joins again
        superseded = group.park_join(member, ticket)
        step.answer(superseded, refused_join(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        self._rebalance.prepare_or_complete(group, step)

    # -- members with a member id --------------------------------------------------------------------------------

    def _known(self, group: ClassicGroup, command: Join, protocols: Protocols, ticket: Any, step: Step) -> None:
        request = command.request
        timer = group.pending_join.pop(request.member_id, None)
        if timer is not None:
            timer.cancel()
            self._add(group, command, request.member_id, protocols, ticket, step)
            return
        try:
            group.validate(request.member_id, request.group_instance_id)
        except KafkaError as refusal:
            step.answer(ticket, refused_join(refusal.code, request.member_id))
            return
        member = group.members[request.member_id]
        unchanged = member.protocols == protocols
        completing = group.state is GroupState.COMPLETING_REBALANCE
        if unchanged and (completing or (group.state is GroupState.STABLE and group.leader != member.member_id)):
            step.answer(ticket, current_generation(group, member))
        else:
            self._update(group, member, command, protocols, ticket, step)

    # -- static members that rejoin -------------------------------------------------------------------------------

    def _static(self, group: ClassicGroup, command: Join, protocols: Protocols, ticket: Any, step: Step) -> None:
        request = command.request
        member_id = self.new_member_id(command)
        assert request.group_instance_id is not None
        earlier_id = group.instances.get(request.group_instance_id)
        if earlier_id is None:
            self._add(group, command, member_id, protocols, ticket, step)
            return
        member = group.members[earlier_id]
        led_by = group.leader
        step.answer(group.take_join(member), refused_join(ErrorCode.FENCED_INSTANCE_ID, earlier_id))
        step.answer(member.take_sync(), refused_sync(ErrorCode.FENCED_INSTANCE_ID))
        group.replace(member, member_id)
        group.set_protocols(member, protocols)
        member.set_timeouts(request.session_timeout_ms, request.rebalance_timeout_ms)
        member.set_client(command.client_id, command.client_host)
        if group.state is not GroupState.STABLE or group.select_protocol() != group.protocol:
            group.park_join(member, ticket)
            self._rebalance.renew_session(group, member, step.now_ms)
            self._rebalance.prepare_or_complete(group, step)
            return
        self._rebalance.renew_session(group, member, step.now_ms)
        if not self._rebalance.keep(group, step):
            step.answer(ticket, refused_join(ErrorCode.UNKNOWN_SERVER_ERROR, member_id))
        elif command.may_skip_assignment:
            leads = group.leader == member_id
            step.answer(ticket, current_generation(group, member, skip_assignment=leads))
        else:
            # the response names the restarted leader's old id as the leader, so that it does not assign partitions
            # again
            step.answer(ticket, current_generation(group, member, leader=led_by))
