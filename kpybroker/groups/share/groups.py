"""The share groups (KIP-932) of one partition of `__consumer_offsets`.

Hard state is the last value of each record. When a coordinator starts, it builds the groups from these values. After
that, the groups change together with the records that they write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import (
    AlterShareOffsets,
    AwaitErrands,
    CommitOffsets,
    DeleteShareOffsets,
    DescribeShareGroup,
    ErrandDone,
    ListSharePartitions,
    ShareHeartbeat,
)
from kpybroker.groups.ground.kind import Decision, GroupKind, KindContext
from kpybroker.groups.ground.record_keys import group_of
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.step import Step
from kpybroker.groups.share import records
from kpybroker.groups.share.description import described, listed
from kpybroker.groups.share.errands import DeleteState, Errand, InitializeState
from kpybroker.groups.share.group import ShareGroup, TopicState
from kpybroker.groups.share.heartbeats import Heartbeats
from kpybroker.groups.share.transitions import Transitions
from kpybroker.wire.rpc.list_groups import ListedGroup

UNINITIALIZED = -1
"""The start offset of share partitions whose leader determines it by share.auto.offset.reset."""


class ShareGroups(GroupKind):
    """Finds, creates and deletes groups, and has share coordinators initialize and delete share partitions."""

    name = "share"
    record_kinds = records.KINDS

    def __init__(self, context: KindContext) -> None:
        self._kinds, self._image = context.kinds, context.image
        self.stored: dict[str, dict[bytes, bytes]] = {}
        """Hard: group id -> key -> value."""
        self.groups: dict[str, ShareGroup] = {}
        self._steps = Transitions(context.settings, context.timers, context.image, self._begin_to_initialize)
        self._heartbeats = Heartbeats(self._steps, self.find, self._find_or_make)
        self._due: list[Errand] = []
        """Errands that have not been passed to the runner yet."""
        self._runner: Any = None
        """The ticket of the ErrandRunner while it waits for errands, else None."""
        self._askers: dict[Errand, list[tuple[Any, bool]]] = {}
        """By errand: the tickets of the commands that wait for it, and whether they delete a whole group."""

    def configure(self, settings: GroupSettings) -> None:
        self._steps.configure(settings)

    def decisions(self) -> Mapping[type, Decision]:
        return {
            AlterShareOffsets: self._alter_offsets,
            AwaitErrands: self._await_errands,
            DeleteShareOffsets: self._delete_offsets,
            DescribeShareGroup: self._describe,
            ErrandDone: self._errand_done,
            ListSharePartitions: self._list_partitions,
            ShareHeartbeat: self._beat,
        }

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
            for topic, state in list(group.initializing.items()):
                known = group.initialized.get(topic)
                if known is not None:  # an AlterShareOffsets command began this; its caller no longer waits
                    group.initialization_ended(topic, known.partitions & state.partitions, done=False)
            self._begin_to_initialize(group, group.initializing)
            for topic in group.deleting:
                self._delete_all(group, topic)

    def start_over(self, step: Step) -> None:
        refusal = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for ticket in (self._runner, *(ticket for askers in self._askers.values() for ticket, _ in askers)):
            step.answer(ticket, refusal)
        self._runner = None
        self._askers.clear()
        self._due.clear()
        self.groups.clear()

    # -- finding --------------------------------------------------------------------------------------------------

    def find(self, group_id: str) -> ShareGroup:
        """Raises GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            is_other = self._kinds.of(group_id) is not None
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Group {group_id} is not a share group." if is_other else f"Group {group_id} not found.",
            )
        return group

    def _find_or_make(self, group_id: str, step: Step) -> ShareGroup:
        group = self.groups.get(group_id)
        if group is None:
            if self._kinds.of(group_id) is not None:
                return self.find(group_id)
            self._kinds.make_room(group_id, self, step)
            group = self.groups[group_id] = ShareGroup(group_id)
        return group

    def _find_empty(self, group_id: str) -> ShareGroup:
        group = self.find(group_id)
        group.check_delete()
        return group

    # -- groups as a whole ----------------------------------------------------------------------------------------

    def commit(self, command: CommitOffsets, step: Step) -> list[ErrorCode]:
        known = command.knows_group_id_not_found
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION)

    def row(self, group_id: str) -> ListedGroup:
        return listed(self.groups[group_id])

    def expiring(self) -> Iterable[str]:
        return ()

    def delete(self, ticket: Any, group_id: str, step: Step) -> None:
        """Delete a group: first the state of its share partitions. The answer True means that the state is
        deleted, and that `delete` must be called again."""
        group = self.groups[group_id]
        errands = [
            self._delete_all(group, topic) for topic in (*group.initializing, *group.initialized, *group.deleting)
        ]
        if not errands:
            self.forget(group_id, step)
            step.answer(ticket, False)
            return
        step.write(records.state_record(group))
        self._wait_for(errands[-1], ticket, step, whole_group=True)

    def forget(self, group_id: str, step: Step) -> None:
        keys = dict.fromkeys(self.stored.get(group_id, ()))
        for record in step.records:
            key = record.key
            if key is not None and int.from_bytes(key[:2], "big") in records.KINDS and group_of(key) == group_id:
                keys[key] = None
        for record in records.tombstones(keys):
            step.write(record)
        for member in self.groups.pop(group_id).members.values():
            if member.session is not None:
                member.session.cancel()

    def drop_topics(self, topics: Mapping[str, bytes], step: Step) -> None:
        for group in self.groups.values():
            dropped = [topic for topic in topics.values() if group.drop(topic)]
            if dropped:
                step.write(records.state_record(group))

    # -- commands -------------------------------------------------------------------------------------------------

    def _beat(self, ticket: Any, command: ShareHeartbeat, step: Step) -> None:
        try:
            step.answer(ticket, self._heartbeats.beat(command, step))
        finally:
            self._wake_runner(step)

    def _describe(self, ticket: Any, command: DescribeShareGroup, step: Step) -> None:
        step.answer(ticket, described(self.find(command.group_id), self._image()))

    def _list_partitions(self, ticket: Any, command: ListSharePartitions, step: Step) -> None:
        group = self.groups.get(command.group_id)
        states = {} if group is None else group.initialized
        step.answer(ticket, [(topic, index) for topic, state in states.items() for index in sorted(state.partitions)])

    def _alter_offsets(self, ticket: Any, command: AlterShareOffsets, step: Step) -> None:
        topic = self._image().topic_by_id(command.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if command.group_id not in self.groups and self._kinds.of(command.group_id) is None:
            group = self._find_or_make(command.group_id, step)
            step.write(records.epoch_record(group))
        group = self._find_empty(command.group_id)
        if topic.id in group.deleting:  # if both ran concurrently, either could be the last
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"The state of topic {topic.name} is being deleted; retry."
            )
        starts = tuple(sorted(command.starts.items()))
        group.initialize({topic.id: TopicState(topic.name, frozenset(index for index, _ in starts))})
        step.write(records.state_record(group))
        partitions, offsets = tuple(index for index, _ in starts), tuple(offset for _, offset in starts)
        errand = InitializeState(group.group_id, topic.id, group.epoch, partitions, offsets)
        self._due.append(errand)
        self._wait_for(errand, ticket, step)

    def _delete_offsets(self, ticket: Any, command: DeleteShareOffsets, step: Step) -> None:
        group = self._find_empty(command.group_id)
        topic = command.topic_id
        if topic is None:
            step.answer(ticket, ErrorCode.NONE)
        elif topic not in group.initialized and topic not in group.initializing and topic not in group.deleting:
            step.answer(ticket, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            errand = self._delete_all(group, topic)
            step.write(records.state_record(group))
            self._wait_for(errand, ticket, step)

    # -- errands --------------------------------------------------------------------------------------------------

    def _begin_to_initialize(self, group: ShareGroup, topics: Mapping[bytes, TopicState]) -> None:
        for topic, state in topics.items():
            partitions = tuple(sorted(state.partitions))
            starts = (UNINITIALIZED,) * len(partitions)
            self._due.append(InitializeState(group.group_id, topic, group.epoch, partitions, starts))

    def _delete_all(self, group: ShareGroup, topic: bytes) -> DeleteState:
        """Delete the state of a topic's share partitions, or of all its current partitions if the group has none."""
        partitions = group.delete(topic)
        known = self._image().topic_by_id(topic)
        if not partitions and known is not None:
            partitions = tuple(range(len(known.partitions)))
        errand = DeleteState(group.group_id, topic, partitions)
        self._due.append(errand)
        return errand

    def _wait_for(self, errand: Errand, ticket: Any, step: Step, *, whole_group: bool = False) -> None:
        """Complete the ticket when this errand is done."""
        self._askers.setdefault(errand, []).append((ticket, whole_group))
        self._wake_runner(step)

    def _wake_runner(self, step: Step) -> None:
        if self._due and self._runner is not None:
            step.answer(self._runner, [])
            self._runner = None

    def _await_errands(self, ticket: Any, _: AwaitErrands, step: Step) -> None:
        if self._due:
            step.answer(ticket, self._due)
            self._due = []
        else:
            self._runner = ticket

    def _errand_done(self, ticket: Any, command: ErrandDone, step: Step) -> None:
        errand, code = command.errand, command.code
        group = self.groups.get(errand.group_id)
        if group is not None:
            if isinstance(errand, InitializeState):
                done = code is ErrorCode.NONE
                changed = group.initialization_ended(errand.topic_id, errand.partitions, done=done)
            else:
                changed = code is ErrorCode.NONE and group.deleted(errand.topic_id)
            if changed:
                step.write(records.state_record(group))
        for asker, whole_group in self._askers.pop(errand, ()):
            refusal = KafkaError(code) if code else True
            step.answer(asker, refusal if whole_group else code)
        step.answer(ticket, None)
