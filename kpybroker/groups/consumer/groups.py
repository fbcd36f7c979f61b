"""Creates, finds, changes and deletes the consumer groups (KIP-848) of one partition of `__consumer_offsets`.

The hard state is the last value of each record. The groups are built from it when a coordinator starts, and are then
changed together with the records that they write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.classic.groups import ClassicGroups
from kpybroker.groups.classic.rebalance import refused_join, refused_sync
from kpybroker.groups.consumer import records
from kpybroker.groups.consumer.classic_members import ClassicMembers
from kpybroker.groups.consumer.description import described, listed
from kpybroker.groups.consumer.group import ConsumerGroup, MemberState
from kpybroker.groups.consumer.heartbeats import Heartbeats
from kpybroker.groups.consumer.migration import Migration
from kpybroker.groups.consumer.transitions import Transitions
from kpybroker.groups.ground.commands import (
    CommitOffsets,
    ConsumerHeartbeat,
    DescribeConsumerGroup,
    FetchOffsets,
    Heartbeat,
    Join,
    Leave,
    Sync,
)
from kpybroker.groups.ground.kind import Decision, DefaultKind, GroupKind, KindContext
from kpybroker.groups.ground.record_keys import group_of
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.step import Step
from kpybroker.groups.offsets.commits import commit
from kpybroker.wire.rpc.list_groups import ListedGroup


class ConsumerGroups(GroupKind):
    """The groups, by group id. They may migrate from and to the classic protocol."""

    name = "consumer"
    record_kinds = records.KINDS

    def __init__(self, context: KindContext) -> None:
        self._kinds, self._settings, self._image = context.kinds, context.settings, context.image
        self._classic: ClassicGroups = context.kinds[ClassicGroups.name]
        self.stored: dict[str, dict[bytes, bytes]] = {}
        """Hard state: the last value of each key, by group id."""
        self.groups: dict[str, ConsumerGroup] = {}
        self._steps = Transitions(context.settings, context.timers, context.image, self._downgrade)
        self._migration = Migration(self._steps, self._classic, self)
        self._heartbeats = Heartbeats(self._steps, self.find, self._find_or_make)
        self._classic_members = ClassicMembers(self._steps)
        self.classic_calls = self

    def configure(self, settings: GroupSettings) -> None:
        self._steps.configure(settings)

    def decisions(self) -> Mapping[type, Decision]:
        return {ConsumerHeartbeat: self._beat, DescribeConsumerGroup: self._describe}

    # -- records --------------------------------------------------------------------------------------------------

    @staticmethod
    def check_record(kind: int, key: bytes, value: bytes | None) -> None:
        group_id = group_of(key)
        if value is not None:
            records.read_group(group_id, {bytes(key): bytes(value)})

    def apply(self, kind: int, key: bytes, value: bytes | None) -> None:
        group_id = group_of(key)
        if value is not None:
            self.stored.setdefault(group_id, {})[bytes(key)] = bytes(value)
            return
        of_group = self.stored.get(group_id)
        if of_group is not None:
            of_group.pop(bytes(key), None)
            if not of_group:
                del self.stored[group_id]

    def wake(self, step: Step) -> None:
        for group_id, said in self.stored.items():
            group = self.groups[group_id] = records.read_group(group_id, said)
            for member in group.members.values():
                self._steps.begin_session(group, member, step.now_ms)
                if member.current.state is MemberState.UNREVOKED_PARTITIONS:
                    self._steps.begin_to_wait(group, member, step)

    def start_over(self, step: Step) -> None:
        self.groups.clear()

    # -- finding --------------------------------------------------------------------------------------------------

    def find(self, group_id: str) -> ConsumerGroup:
        """The group with this id. Raises GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            is_other = self._kinds.of(group_id) is not None
            why = f"Group {group_id} is not a consumer group." if is_other else f"Group {group_id} not found."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, why)
        return group

    def _find_or_make(self, group_id: str, step: Step) -> ConsumerGroup:
        group = self.groups.get(group_id) or self._migration.upgraded(group_id, step)
        if group is None:
            self._kinds.make_room(group_id, self, step)
            group = self.groups[group_id] = ConsumerGroup(group_id)
        return group

    def _downgrade(self, group: ConsumerGroup, step: Step, rebalances: bool) -> bool:
        return self._migration.downgrade(group, step, rebalances=rebalances)

    def gives_way(self, group_id: str, to: GroupKind) -> bool:
        return isinstance(to, DefaultKind) and not self.groups[group_id].members

    def forget(self, group_id: str, step: Step) -> None:
        group = self.groups[group_id]
        keys = dict.fromkeys(self.stored.get(group_id, ()))
        for record in step.records:
            key = record.key
            if key is not None and int.from_bytes(key[:2], "big") in records.KINDS and group_of(key) == group_id:
                keys[key] = None
        for record in records.tombstones(keys):
            step.write(record)
        for member in group.members.values():
            member.cancel_timers()
        if group.resolving is not None:
            group.resolving.cancel()
        del self.groups[group_id]

    # -- the classic protocol, for members that have not migrated -------------------------------------------------

    def join(self, ticket: Any, command: Join, step: Step) -> None:
        """Respond to a JoinGroup. A group without members is replaced by a classic group."""
        group = self.groups[command.request.group_id]
        if not group.members or self._classic.refusal(command.request) is not None:
            self._classic.join(ticket, command, step)
            return
        try:
            member_id = self._classic.new_member_id(command)
            step.answer(ticket, self._classic_members.join(group, command, member_id, step))
        except KafkaError as refusal:
            step.answer(ticket, refused_join(refusal.code, ""))

    def sync(self, ticket: Any, command: Sync, step: Step) -> None:
        """Respond to a SyncGroup."""
        group = self.groups[command.request.group_id]
        try:
            step.answer(ticket, self._classic_members.sync(group, command.request, step))
        except KafkaError as refusal:
            step.answer(ticket, refused_sync(refusal.code))

    def heartbeat(self, ticket: Any, command: Heartbeat, step: Step) -> None:
        """Respond to a Heartbeat. Raises KafkaError."""
        step.answer(ticket, self._classic_members.beat(self.groups[command.group_id], command, step))

    def leave(self, ticket: Any, command: Leave, step: Step) -> None:
        """Respond to a LeaveGroup."""
        step.answer(ticket, self._classic_members.leave(self.groups[command.group_id], command.members, step))

    # -- commands -------------------------------------------------------------------------------------------------

    def _beat(self, ticket: Any, command: ConsumerHeartbeat, step: Step) -> None:
        step.answer(ticket, self._heartbeats.beat(command, step))

    def _describe(self, ticket: Any, command: DescribeConsumerGroup, step: Step) -> None:
        group = self.find(command.group_id)
        step.answer(ticket, described(group, self._steps.assignor(group), self._image()))

    def commit(self, command: CommitOffsets, step: Step) -> list[ErrorCode]:
        self.groups[command.group_id].check_commit(command)
        return commit(command, self._settings, step)

    def check_fetch(self, command: FetchOffsets) -> None:
        self.groups[command.group_id].check_fetch(command.member_id, command.member_epoch)

    def row(self, group_id: str) -> ListedGroup:
        return listed(self.groups[group_id])
