"""The streams groups (KIP-1071) of one partition of `__consumer_offsets`.

Hard state is the last value of each record. The groups are built from it when a coordinator starts, and then change
together with the records that they write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import CommitOffsets, DescribeStreamsGroup, FetchOffsets, StreamsHeartbeat
from kpybroker.groups.ground.kind import Decision, DefaultKind, GroupKind, KindContext
from kpybroker.groups.ground.record_keys import group_of
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.step import Step
from kpybroker.groups.offsets.commits import commit
from kpybroker.groups.streams import records
from kpybroker.groups.streams.description import described, listed
from kpybroker.groups.streams.group import MemberState, StreamsGroup
from kpybroker.groups.streams.heartbeats import Heartbeats
from kpybroker.groups.streams.transitions import Transitions
from kpybroker.wire.rpc.list_groups import ListedGroup


class StreamsGroups(GroupKind):
    """Finds, creates and deletes groups. A streams group without members becomes a classic group when a classic member
    joins, and the reverse."""

    name = "streams"
    record_kinds = records.KINDS

    def __init__(self, context: KindContext) -> None:
        self._kinds, self._settings = context.kinds, context.settings
        self.stored: dict[str, dict[bytes, bytes]] = {}
        """Hard state: group id -> key -> value."""
        self.groups: dict[str, StreamsGroup] = {}
        self._steps = Transitions(context.settings, context.timers, context.image)
        self._heartbeats = Heartbeats(self._steps, self.find, self._find_or_begin, self._register)

    def configure(self, settings: GroupSettings) -> None:
        self._steps.configure(settings)

    def decisions(self) -> Mapping[type, Decision]:
        return {DescribeStreamsGroup: self._describe, StreamsHeartbeat: self._beat}

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
                if member.current.state is MemberState.UNREVOKED_TASKS:
                    self._steps.begin_to_wait(group, member, step)

    def start_over(self, step: Step) -> None:
        self.groups.clear()

    # -- finding --------------------------------------------------------------------------------------------------

    def find(self, group_id: str) -> StreamsGroup:
        """Raises GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            raise self._not_found(group_id)
        return group

    def _not_found(self, group_id: str) -> KafkaError:
        is_other = self._kinds.of(group_id) is not None
        why = f"Group {group_id} is not a streams group." if is_other else f"Streams group {group_id} not found."
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, why)

    def _find_or_begin(self, group_id: str) -> StreamsGroup:
        """The group, or a new one. Raises GROUP_ID_NOT_FOUND if a group of another kind has the id, unless it is a
        classic group without members."""
        group = self.groups.get(group_id)
        if group is None:
            other = self._kinds.of(group_id)
            if other is not None and not other.gives_way(group_id, self):
                raise self._not_found(group_id)
            group = StreamsGroup(group_id)
        return group

    def _register(self, group: StreamsGroup, step: Step) -> bool:
        """Register a new group. Returns whether it is one."""
        if self.groups.get(group.group_id) is group:
            return False
        self._kinds.make_room(group.group_id, self, step)
        self.groups[group.group_id] = group
        return True

    def gives_way(self, group_id: str, to: GroupKind) -> bool:
        return isinstance(to, DefaultKind) and not self.groups[group_id].members

    def forget(self, group_id: str, step: Step) -> None:
        keys = dict.fromkeys(self.stored.get(group_id, ()))
        for record in step.records:
            key = record.key
            if key is not None and int.from_bytes(key[:2], "big") in records.KINDS and group_of(key) == group_id:
                keys[key] = None
        for record in records.tombstones(keys):
            step.write(record)
        self.groups.pop(group_id).cancel_timers()

    # -- commands -------------------------------------------------------------------------------------------------

    def _beat(self, ticket: Any, command: StreamsHeartbeat, step: Step) -> None:
        step.answer(ticket, self._heartbeats.beat(command, step))

    def _describe(self, ticket: Any, command: DescribeStreamsGroup, step: Step) -> None:
        group = self.groups.get(command.group_id)
        if group is None:
            is_other = self._kinds.of(command.group_id) is not None
            why = f"Group {command.group_id} is not a streams group." if is_other else None
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, why or f"Group {command.group_id} not found.")
        step.answer(ticket, described(group))

    def commit(self, command: CommitOffsets, step: Step) -> list[ErrorCode]:
        self.groups[command.group_id].check_commit(command)
        return commit(command, self._settings, step)

    def check_fetch(self, command: FetchOffsets) -> None:
        self.groups[command.group_id].check_fetch(command.member_id, command.member_epoch)

    def row(self, group_id: str) -> ListedGroup:
        return listed(self.groups[group_id])
