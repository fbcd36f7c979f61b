"""The groups of one partition of `__consumer_offsets`: a Machine (`machine/contract.py`).

Hard state, changed only by `apply`, is what the records say: for each group its last GroupMetadata value, or what was
written of a consumer group (`groups.consumer`), for each group and partition its committed offset and what transactions
may make of it, and which groups other protocols keep. Everything else is soft: the members as they come and go between
two records, what they have parked, their sessions. A new coordinator starts from the hard state with every session
begun anew, and members of a generation that was not complete join again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from kpybroker.errors import Damage, ErrorCode, KafkaError, MalformedFrame
from kpybroker.groups import commits
from kpybroker.groups.classic.description import described, listed, listed_foreign
from kpybroker.groups.classic.group import ClassicGroup, GroupState
from kpybroker.groups.classic.join_requests import JoinRequests
from kpybroker.groups.classic.member_requests import MemberRequests
from kpybroker.groups.classic.rebalance import Rebalance, refused_join, refused_sync
from kpybroker.groups.classic.records import group_record, group_tombstone, read_group, read_group_id
from kpybroker.groups.consumer import records as modern_records
from kpybroker.groups.consumer.group import ConsumerGroup
from kpybroker.groups.consumer.groups import ConsumerGroups
from kpybroker.groups.ground.commands import (
    Command,
    CommitOffsets,
    ConsumerHeartbeat,
    DeleteGroup,
    DeleteOffsets,
    DescribeConsumerGroup,
    DescribeGroup,
    DropTopics,
    EndTransaction,
    FetchOffsets,
    Heartbeat,
    Join,
    Leave,
    ListGroups,
    Sync,
)
from kpybroker.groups.ground.record_keys import (
    FOREIGN_GROUP_METADATA,
    GROUP_METADATA,
    LEGACY_OFFSET_COMMIT,
    OFFSET_COMMIT,
    kind_of,
)
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.step import Step
from kpybroker.groups.ground.timers import Timer, Timers
from kpybroker.groups.offsets.offsets import Offsets
from kpybroker.groups.offsets.records import read_commit
from kpybroker.machine.contract import Moment, Outcome, Stored, Tick
from kpybroker.metadata.image import Image
from kpybroker.wire.records.markers import Marker

TIMERS_A_TICK, GROUPS_A_TICK = 100, 200
"""Background work is done in steps of this size, so that the loop never stalls for long."""


class GroupMachine:
    """Groups and their offsets. `new_id` makes the random part of member ids; `image` tells which topics there are."""

    def __init__(self, settings: GroupSettings, new_id: Callable[[], str], image: Callable[[], Image] = Image) -> None:
        self.settings = settings
        self.stored: dict[str, bytes] = {}
        """Hard: group id -> its last GroupMetadata value."""
        self.offsets = Offsets()
        """Hard."""
        self.foreign: dict[str, str] = {}
        """Hard: groups kept by a protocol that this machine does not serve -> their type."""
        self.groups: dict[str, ClassicGroup] = {}
        """Soft: every group of the classic protocol with a record or an offset, as it is now."""
        self._timers = Timers()
        self._rebalance = Rebalance(settings, self._timers, new_id)
        self._joining = JoinRequests(self._rebalance)
        self._membership = MemberRequests(self._rebalance)
        self.modern = ConsumerGroups(self._rebalance, self._timers, image, self.groups, self._check_room)
        self._awake = False
        self._unapplied = 0
        """Records of the last step that have not come back: the log refused them, and what is soft is ahead of it."""
        self._expiry = Timer(self._expire)
        self._expiring: Iterator[str] | None = None
        self._decisions: dict[type, Callable[[Any, Any, Step], None]] = {
            CommitOffsets: self._commit,
            ConsumerHeartbeat: self.modern.beat,
            DeleteGroup: self._delete_group,
            DeleteOffsets: self._delete_offsets,
            DescribeConsumerGroup: self._describe_modern,
            DescribeGroup: self._describe,
            DropTopics: self._drop_topics,
            EndTransaction: self._end_transaction,
            FetchOffsets: self._fetch,
            Heartbeat: self._heartbeat,
            Join: self._join,
            Leave: self._leave,
            ListGroups: self._list,
            Sync: self._sync,
            Tick: self._tick,
        }

    # -- Machine --------------------------------------------------------------------------------------------------

    def decide(self, ticket: Any, command: Command, now: Moment) -> Outcome:
        """One step: what is to be written, and who is answered with what."""
        step = Step(now)
        if self._unapplied:
            self._start_over(step)
        if not self._awake:
            self._wake(step)
        try:
            self._decisions[type(command)](ticket, command, step)
        except KafkaError as refusal:
            step.answer(ticket, refusal)
        self._unapplied = len(step.records)
        return step.outcome()

    def apply(self, record: Stored) -> None:
        """Take one record into the hard state. Kinds that are not served stay in the log and are of no effect here.

        Raises Damage where a record of a kind that is served cannot be read: to pass it over would lose what it says.
        """
        if self._unapplied:
            self._unapplied -= 1
        key, value, transaction = record.key, record.value, record.transaction
        if isinstance(transaction, Marker):
            self.offsets.end(transaction.producer_id, commits=transaction.commits)
            return
        if key is None:
            return
        kind = kind_of(key)
        try:
            if kind in (OFFSET_COMMIT, LEGACY_OFFSET_COMMIT):
                group_id, place, committed = read_commit(record)
                self.offsets.apply(group_id, place, committed, record.offset, transaction)
            elif kind == GROUP_METADATA:
                self._apply_group(read_group_id(key), value)
            elif kind in FOREIGN_GROUP_METADATA:
                self._apply_foreign(read_group_id(key), kind, value)
            elif kind in modern_records.KINDS:
                self.modern.apply(key, value)
        except MalformedFrame as unreadable:
            raise Damage(f"the record at offset {record.offset} cannot be read: {unreadable}") from unreadable

    def deadline_ms(self) -> int | None:
        """When to be woken; at once after a replay, so that sessions begin."""
        return self._timers.deadline_ms() if self._awake and not self._unapplied else 0

    # -- hard state -----------------------------------------------------------------------------------------------

    def _apply_group(self, group_id: str, value: bytes | None) -> None:
        if value is None:
            self.stored.pop(group_id, None)
        else:
            self.stored[group_id] = bytes(value)

    def _apply_foreign(self, group_id: str, kind: int, value: bytes | None) -> None:
        if value is None:
            self.foreign.pop(group_id, None)
        else:
            self.foreign[group_id] = FOREIGN_GROUP_METADATA[kind]

    # -- waking after a replay ------------------------------------------------------------------------------------

    def _wake(self, step: Step) -> None:
        self._awake = True
        for group_id, value in self.stored.items():
            try:
                group = self.groups[group_id] = read_group(group_id, value, step.wall_ms)
            except MalformedFrame as unreadable:
                raise Damage(f"the last record of group {group_id!r} cannot be read: {unreadable}") from unreadable
            for member in group.members.values():
                self._rebalance.renew_session(group, member, step.now_ms)
            if len(group.members) > self.settings.group_max_size:
                self._rebalance.prepare(group, step)
        self.modern.wake(step)
        for group_id in chain(self.offsets.groups(), self.offsets.pending.groups()):
            if group_id not in self.groups and group_id not in self.foreign and group_id not in self.modern.groups:
                self.groups[group_id] = ClassicGroup(group_id, step.wall_ms)
        self._timers.set(self._expiry, step.now_ms + self.settings.offsets_retention_check_interval_ms)

    def _start_over(self, step: Step) -> None:
        """The log refused the last step: back to what it says, as a new coordinator would begin."""
        self._unapplied = 0
        for group in self.groups.values():
            for member in group.members.values():
                step.answer(group.take_join(member), refused_join(ErrorCode.NOT_COORDINATOR, member.member_id))
                step.answer(member.sync_ticket, refused_sync(ErrorCode.NOT_COORDINATOR))
        self.groups.clear()
        self.modern.start_over()
        self._timers.clear()
        self._expiry = Timer(self._expire)
        self._expiring = None
        self._awake = False

    # -- finding groups -------------------------------------------------------------------------------------------

    def _group(self, group_id: str) -> ClassicGroup:
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def _any_group(self, group_id: str) -> ClassicGroup | ConsumerGroup:
        return self.modern.groups.get(group_id) or self._group(group_id)

    def _check_room(self, group_id: str) -> None:
        if group_id in self.foreign:
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"a group of type {self.foreign[group_id]} has this id"
            )
        if len(self.groups) + len(self.modern.groups) >= self.settings.max_groups:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, "the limit of groups is reached")

    def _make(self, group_id: str, wall_ms: int) -> ClassicGroup:
        self._check_room(group_id)
        group = self.groups[group_id] = ClassicGroup(group_id, wall_ms)
        return group

    # -- the rebalance protocol -----------------------------------------------------------------------------------

    def _join(self, ticket: Any, command: Join, step: Step) -> None:
        request = command.request
        code = self._joining.refusal(request)
        modern = self.modern.groups.get(request.group_id)
        if code is None and modern is not None and modern.members:
            step.answer(ticket, self.modern.join(modern, command, self._joining.new_member_id(command), step))
            return
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
            self.modern.give_way(request.group_id, step)
            try:
                group = self._make(request.group_id, step.wall_ms)
            except KafkaError as refusal:
                step.answer(ticket, refused_join(refusal.code, ""))
                return
            step.write(group_record(group))
        self._joining.join(group, command, ticket, step)

    def _sync(self, ticket: Any, command: Sync, step: Step) -> None:
        group = self.groups.get(command.request.group_id)
        modern = self.modern.groups.get(command.request.group_id)
        if not command.request.group_id:
            step.answer(ticket, refused_sync(ErrorCode.INVALID_GROUP_ID))
        elif modern is not None:
            step.answer(ticket, self.modern.sync(modern, command.request, step))
        elif group is None:
            step.answer(ticket, refused_sync(ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            self._membership.sync(group, command.request, ticket, step)

    def _heartbeat(self, ticket: Any, command: Heartbeat, step: Step) -> None:
        group = self.groups.get(command.group_id)
        modern = self.modern.groups.get(command.group_id)
        if not command.group_id:
            step.answer(ticket, ErrorCode.INVALID_GROUP_ID)
        elif modern is not None:
            step.answer(ticket, self.modern.classic.beat(modern, command, step))
        elif group is None:
            step.answer(ticket, ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            step.answer(ticket, self._membership.heartbeat(group, command, step))

    def _leave(self, ticket: Any, command: Leave, step: Step) -> None:
        if not command.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(command.group_id)
        modern = self.modern.groups.get(command.group_id)
        if modern is not None:
            step.answer(ticket, self.modern.classic.leave(modern, command.members, step))
        elif group is None:
            step.answer(ticket, [ErrorCode.UNKNOWN_MEMBER_ID] * len(command.members))
        else:
            step.answer(ticket, self._membership.leave(group, command, step))

    # -- offsets --------------------------------------------------------------------------------------------------

    def _commit(self, ticket: Any, command: CommitOffsets, step: Step) -> None:
        modern = self.modern.groups.get(command.group_id)
        if modern is not None:
            commits.check_modern_commit(modern, command)
            step.answer(ticket, commits.commit(command, self.settings, step))
            return
        group = self.groups.get(command.group_id)
        is_new = group is None
        if group is None:
            if command.generation >= 0:
                unknown = command.knows_group_id_not_found
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if unknown else ErrorCode.ILLEGAL_GENERATION)
            if command.group_id in self.foreign:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the group is kept by a protocol that is not served")
            group = self._make(command.group_id, step.wall_ms)
        try:
            commits.check_commit(group, command)
            step.answer(ticket, commits.commit(command, self.settings, step))
        finally:
            if is_new and not step.records:
                del self.groups[command.group_id]
        member = group.members.get(command.member_id)
        if member is not None:
            self._rebalance.renew_session(group, member, step.now_ms)

    def _end_transaction(self, ticket: Any, command: EndTransaction, step: Step) -> None:
        step.write(Stored(None, None, transaction=command.marker))
        step.answer(ticket, None)

    def _fetch(self, ticket: Any, command: FetchOffsets, step: Step) -> None:
        modern = self.modern.groups.get(command.group_id)
        if modern is not None:
            modern.check_fetch(command.member_id, command.member_epoch)
        step.answer(ticket, self.offsets.fetch(command.group_id, command.topics, command.require_stable))

    def _delete_offsets(self, ticket: Any, command: DeleteOffsets, step: Step) -> None:
        group = self._any_group(command.group_id)
        step.answer(ticket, commits.delete(group, command, self.offsets, self.settings, step))

    def _drop_topics(self, ticket: Any, command: DropTopics, step: Step) -> None:
        step.answer(ticket, not commits.drop_topics(command.topics, self.offsets, step))

    # -- groups as a whole ----------------------------------------------------------------------------------------

    def _describe(self, ticket: Any, command: DescribeGroup, step: Step) -> None:
        step.answer(ticket, described(self._group(command.group_id)))

    def _describe_modern(self, ticket: Any, command: DescribeConsumerGroup, step: Step) -> None:
        step.answer(ticket, self.modern.describe(command.group_id))

    def _list(self, ticket: Any, command: ListGroups, step: Step) -> None:
        found = [listed(group) for group in self.groups.values()]
        found += self.modern.list()
        found += [listed_foreign(group_id, group_type) for group_id, group_type in self.foreign.items()]
        step.answer(
            ticket,
            [
                each
                for each in found
                if (not command.states or each.group_state.lower() in command.states)
                and (not command.types or each.group_type.lower() in command.types)
            ],
        )

    def _delete_group(self, ticket: Any, command: DeleteGroup, step: Step) -> None:
        group = self._any_group(command.group_id)
        if group.members or group.state not in (GroupState.EMPTY, GroupState.EMPTY.value):
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "the group has members")
        done = commits.drop_all(command.group_id, self.offsets, step)
        if done:
            self._forget(group, step)
        step.answer(ticket, not done)

    def _forget(self, group: ClassicGroup | ConsumerGroup, step: Step) -> None:
        if isinstance(group, ConsumerGroup):
            self.modern.forget(group, step)
            return
        step.write(group_tombstone(group.group_id))
        for timer in group.pending_join.values():
            timer.cancel()
        del self.groups[group.group_id]

    # -- time -----------------------------------------------------------------------------------------------------

    def _tick(self, ticket: Any, _: Tick, step: Step) -> None:
        self._timers.fire_due(step, TIMERS_A_TICK, commits.STEP_BYTES)
        step.answer(ticket, None)

    def _expire(self, step: Step) -> None:
        """One step of a round over all groups; the next follows at once, the next round after the interval."""
        if self._expiring is None:
            self._expiring = iter([*self.groups, *self.modern.groups])
        for _ in range(GROUPS_A_TICK):
            group_id = next(self._expiring, None)
            if group_id is None:
                self._expiring = None
                self._timers.set(self._expiry, step.now_ms + self.settings.offsets_retention_check_interval_ms)
                return
            group = self.modern.groups.get(group_id) or self.groups.get(group_id)
            if group is None:
                continue
            expired = commits.expire(group, self.offsets, self.settings, step)
            if step.size_bytes >= commits.STEP_BYTES:
                self._expiring = chain([group_id], self._expiring)
                break
            if expired and _may_expire(group):
                self._forget(group, step)
        self._timers.set(self._expiry, step.now_ms)


def _may_expire(group: ClassicGroup | ConsumerGroup) -> bool:
    if isinstance(group, ConsumerGroup):
        return not group.members
    return group.state is GroupState.EMPTY and not group.pending_join
