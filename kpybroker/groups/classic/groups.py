"""Creates, finds, changes and deletes the classic groups of one partition of `__consumer_offsets`.

The hard state is the last GroupMetadata value of each group. The groups are built from it when a coordinator starts. As
in Kafka, a group that only has offsets is also a classic group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kpybroker.errors import Damage, ErrorCode, KafkaError, MalformedFrame
from kpybroker.groups.classic.description import described, listed
from kpybroker.groups.classic.group import ClassicGroup, GroupState
from kpybroker.groups.classic.join_requests import JoinRequests
from kpybroker.groups.classic.member_requests import MemberRequests
from kpybroker.groups.classic.rebalance import Rebalance, refused_join, refused_sync
from kpybroker.groups.classic.records import group_record, group_tombstone, read_group, read_group_id
from kpybroker.groups.ground.commands import CommitOffsets, DescribeGroup, Heartbeat, Join, Leave, Sync
from kpybroker.groups.ground.kind import Decision, DefaultKind, GroupKind, KindContext
from kpybroker.groups.ground.record_keys import GROUP_METADATA
from kpybroker.groups.ground.step import Step
from kpybroker.groups.offsets.commits import commit
from kpybroker.wire.rpc import join_group
from kpybroker.wire.rpc.list_groups import ListedGroup


class ClassicGroups(DefaultKind):
    """The groups, by group id, and the requests of the classic protocol."""

    name = "classic"
    taken = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    record_kinds = frozenset({GROUP_METADATA})

    def __init__(self, context: KindContext) -> None:
        self._kinds, self._settings = context.kinds, context.settings
        self.stored: dict[str, bytes] = {}
        """Hard state: the last GroupMetadata value of each group, by group id."""
        self.groups: dict[str, ClassicGroup] = {}
        self.rebalance = Rebalance(context.settings, context.timers, context.new_id)
        self._joining = JoinRequests(self.rebalance)
        self._membership = MemberRequests(self.rebalance)
        self.classic_calls = self

    def decisions(self) -> Mapping[type, Decision]:
        return {DescribeGroup: self._describe}

    # -- records --------------------------------------------------------------------------------------------------

    @staticmethod
    def check_record(kind: int, key: bytes, value: bytes | None) -> None:
        group_id = read_group_id(key)
        if value is not None:
            read_group(group_id, value, 0)

    def apply(self, kind: int, key: bytes, value: bytes | None) -> None:
        group_id = read_group_id(key)
        if value is None:
            self.stored.pop(group_id, None)
        else:
            self.stored[group_id] = bytes(value)

    def wake(self, step: Step) -> None:
        for group_id, value in self.stored.items():
            try:
                group = self.groups[group_id] = read_group(group_id, value, step.wall_ms)
            except MalformedFrame as unreadable:
                raise Damage(f"the last record of group {group_id!r} cannot be read: {unreadable}") from unreadable
            for member in group.members.values():
                self.rebalance.renew_session(group, member, step.now_ms)
            if len(group.members) > self._settings.group_max_size:
                self.rebalance.prepare(group, step)

    def start_over(self, step: Step) -> None:
        for group in self.groups.values():
            for member in group.members.values():
                step.answer(group.take_join(member), refused_join(ErrorCode.NOT_COORDINATOR, member.member_id))
                step.answer(member.sync_ticket, refused_sync(ErrorCode.NOT_COORDINATOR))
        self.groups.clear()

    # -- groups ---------------------------------------------------------------------------------------------------

    def find(self, group_id: str) -> ClassicGroup:
        """The group with this id. Raises GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def add_without_members(self, group_id: str, wall_ms: int) -> ClassicGroup:
        """Add a group that only has offsets."""
        group = self.groups[group_id] = ClassicGroup(group_id, wall_ms)
        return group

    def _make(self, group_id: str, step: Step) -> ClassicGroup:
        self._kinds.make_room(group_id, self, step)
        return self.add_without_members(group_id, step.wall_ms)

    def forget(self, group_id: str, step: Step) -> None:
        group = self.groups[group_id]
        step.write(group_tombstone(group_id))
        for timer in group.pending_join.values():
            timer.cancel()
        del self.groups[group_id]

    def gives_way(self, group_id: str, to: GroupKind) -> bool:
        group = self.groups[group_id]
        return group.state is GroupState.EMPTY and not group.members

    def _describe(self, ticket: Any, command: DescribeGroup, step: Step) -> None:
        step.answer(ticket, described(self.find(command.group_id)))

    def row(self, group_id: str) -> ListedGroup:
        return listed(self.groups[group_id])

    # -- the classic protocol ----------------------------------------------------------------------------------------

    def refusal(self, request: join_group.Request) -> ErrorCode | None:
        """The error code of a JoinGroup that no group accepts, else None."""
        return self._joining.refusal(request)

    def new_member_id(self, command: Join) -> str:
        """Create an id for a member that has none."""
        return self._joining.new_member_id(command)

    def join(self, ticket: Any, command: Join, step: Step) -> None:
        """Respond to a JoinGroup or park it. The first member creates the group."""
        request = command.request
        code = self.refusal(request)
        group = self.groups.get(request.group_id)
        if code is None and group is None:
            if request.member_id:
                code = ErrorCode.UNKNOWN_MEMBER_ID
            elif not request.protocol_type or not request.protocols:
                code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if code is not None:
            step.answer(ticket, refused_join(code, request.member_id))
            return
        if group is None:
            try:
                group = self._make(request.group_id, step)
            except KafkaError as refusal:
                step.answer(ticket, refused_join(refusal.code, ""))
                return
            step.write(group_record(group))
        self._joining.join(group, command, ticket, step)

    def sync(self, ticket: Any, command: Sync, step: Step) -> None:
        """Respond to a SyncGroup or park it."""
        group = self.groups.get(command.request.group_id)
        if not command.request.group_id:
            step.answer(ticket, refused_sync(ErrorCode.INVALID_GROUP_ID))
        elif group is None:
            step.answer(ticket, refused_sync(ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            self._membership.sync(group, command.request, ticket, step)

    def heartbeat(self, ticket: Any, command: Heartbeat, step: Step) -> None:
        """Respond to a Heartbeat."""
        group = self.groups.get(command.group_id)
        if not command.group_id:
            step.answer(ticket, ErrorCode.INVALID_GROUP_ID)
        elif group is None:
            step.answer(ticket, ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            step.answer(ticket, self._membership.heartbeat(group, command, step))

    def leave(self, ticket: Any, command: Leave, step: Step) -> None:
        """Respond to a LeaveGroup. Raises INVALID_GROUP_ID."""
        if not command.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(command.group_id)
        if group is None:
            step.answer(ticket, [ErrorCode.UNKNOWN_MEMBER_ID] * len(command.members))
        else:
            step.answer(ticket, self._membership.leave(group, command, step))

    # -- offsets --------------------------------------------------------------------------------------------------

    def commit(self, command: CommitOffsets, step: Step) -> list[ErrorCode]:
        """Commit offsets, for a member or without one. The first commit creates a group without members."""
        group = self.groups.get(command.group_id)
        is_new = group is None
        if group is None:
            if command.generation >= 0:
                unknown = command.knows_group_id_not_found
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if unknown else ErrorCode.ILLEGAL_GENERATION)
            group = self._make(command.group_id, step)
        try:
            group.check_commit(command)
            codes = commit(command, self._settings, step)
        finally:
            if is_new and not step.records:
                del self.groups[command.group_id]
        member = group.members.get(command.member_id)
        if member is not None:
            self.rebalance.renew_session(group, member, step.now_ms)
        return codes
