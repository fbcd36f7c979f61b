"""The groups of one partition of `__consumer_offsets`: a Machine (`machine/contract.py`).

Hard state changes only in `apply`: the records of each kind of group (`ground/kind.py`), and the committed offset of
each group and partition, with the pending offsets of transactions. Everything else is soft state: members that join and
leave between two records, parked requests, sessions. A new coordinator starts from the hard state and restarts every
session, and members of an incomplete generation join again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from kpybroker.errors import Damage, KafkaError, MalformedFrame
from kpybroker.groups.ground.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DropTopics,
    EndTransaction,
    FetchOffsets,
    Heartbeat,
    Join,
    Leave,
    ListGroups,
    Sync,
)
from kpybroker.groups.ground.kind import Decision, GroupKind
from kpybroker.groups.ground.record_keys import LEGACY_OFFSET_COMMIT, OFFSET_COMMIT, kind_of
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.step import Step
from kpybroker.groups.ground.timers import Timer, Timers
from kpybroker.groups.kinds import KINDS, group_kinds
from kpybroker.groups.offsets import commits
from kpybroker.groups.offsets.offsets import Offsets
from kpybroker.groups.offsets.records import read_commit
from kpybroker.machine.contract import Moment, Outcome, Stored, Tick
from kpybroker.metadata.image import Image
from kpybroker.wire.records.markers import Marker

TIMERS_A_TICK, GROUPS_A_TICK = 100, 200
"""Background work is done in steps of this size, so that the event loop is never blocked for long."""


class GroupMachine:
    """Groups and their offsets. `new_id` creates the random part of member ids; `image` returns the metadata."""

    def __init__(
        self,
        settings: GroupSettings,
        new_id: Callable[[], str],
        image: Callable[[], Image] = Image,
        registered: Sequence[type[GroupKind]] = KINDS,
    ) -> None:
        self.settings = settings
        self.offsets = Offsets()
        """Hard state: the committed offsets."""
        self._timers = Timers()
        self.kinds = group_kinds(registered, settings, self._timers, new_id, image)
        self._by_record = {record: kind for kind in self.kinds for record in kind.record_kinds}
        self._awake = False
        self._unapplied = 0
        """The number of records of the last step that have not been applied. If it is not 0 at the next step, the log
        refused them, and the soft state is ahead of the log."""
        self._expiry = Timer(self._expire)
        self._expiring: Iterator[str] | None = None
        self._decisions: dict[type, Decision] = {
            CommitOffsets: self._commit,
            DeleteGroup: self._delete_group,
            DeleteOffsets: self._delete_offsets,
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
        for kind in self.kinds:
            self._decisions.update(kind.decisions())

    def configure(self, settings: GroupSettings) -> None:
        """Apply settings that changed while the broker runs. Each kind applies the settings that can change."""
        for kind in self.kinds:
            kind.configure(settings)

    @property
    def stored_count(self) -> int:
        """The number of groups that have records of their own."""
        return sum(len(kind.stored) for kind in self.kinds)

    # -- Machine --------------------------------------------------------------------------------------------------

    def decide(self, ticket: Any, command: Any, now: Moment) -> Outcome:
        """Execute one step. Returns the records to write and the results."""
        step = Step(now)
        if self._unapplied:
            self._start_over(step)
        if not self._awake:
            self._wake(step)
        try:
            self._decisions[type(command)](ticket, command, step)
        except KafkaError as refusal:
            step.answer(ticket, refusal.with_traceback(None))  # which would hold the step, and thus this answer
        self._unapplied = len(step.records)
        return step.outcome()

    def apply(self, record: Stored) -> None:
        """Apply one record to the hard state. Records of unserved kinds stay in the log and have no effect here.

        Raises Damage if a record of a served kind cannot be read, because its content would be lost if it were skipped.
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
            elif kind in self._by_record:
                self._by_record[kind].apply(kind, key, value)
        except MalformedFrame as unreadable:
            raise Damage(f"the record at offset {record.offset} cannot be read: {unreadable}") from unreadable

    def deadline_ms(self) -> int | None:
        """The time of the next step; 0 after a replay, so that the sessions begin at once."""
        return self._timers.deadline_ms() if self._awake and not self._unapplied else 0

    # -- start after a replay -------------------------------------------------------------------------------------

    def _wake(self, step: Step) -> None:
        self._awake = True
        for kind in self.kinds:
            kind.wake(step)
        for group_id in chain(self.offsets.groups(), self.offsets.pending.groups()):
            if self.kinds.of(group_id) is None:
                self.kinds.default.add_without_members(group_id, step.wall_ms)
        self._timers.set(self._expiry, step.now_ms + self.settings.offsets_retention_check_interval_ms)

    def _start_over(self, step: Step) -> None:
        """Return to the state in the log and start like a new coordinator, because the log refused the last step."""
        self._unapplied = 0
        for kind in self.kinds:
            kind.start_over(step)
        self._timers.clear()
        self._expiry = Timer(self._expire)
        self._expiring = None
        self._awake = False

    # -- the classic protocol -------------------------------------------------------------------------------------

    def _join(self, ticket: Any, command: Join, step: Step) -> None:
        self.kinds.classic_calls(command.request.group_id).join(ticket, command, step)

    def _sync(self, ticket: Any, command: Sync, step: Step) -> None:
        self.kinds.classic_calls(command.request.group_id).sync(ticket, command, step)

    def _heartbeat(self, ticket: Any, command: Heartbeat, step: Step) -> None:
        self.kinds.classic_calls(command.group_id).heartbeat(ticket, command, step)

    def _leave(self, ticket: Any, command: Leave, step: Step) -> None:
        self.kinds.classic_calls(command.group_id).leave(ticket, command, step)

    # -- offsets --------------------------------------------------------------------------------------------------

    def _commit(self, ticket: Any, command: CommitOffsets, step: Step) -> None:
        kind = self.kinds.of(command.group_id) or self.kinds.default
        step.answer(ticket, kind.commit(command, step))

    def _end_transaction(self, ticket: Any, command: EndTransaction, step: Step) -> None:
        step.write(Stored(None, None, transaction=command.marker))
        step.answer(ticket, None)

    def _fetch(self, ticket: Any, command: FetchOffsets, step: Step) -> None:
        kind = self.kinds.of(command.group_id)
        if kind is not None:
            kind.check_fetch(command)
        step.answer(ticket, self.offsets.fetch(command.group_id, command.topics, command.require_stable))

    def _delete_offsets(self, ticket: Any, command: DeleteOffsets, step: Step) -> None:
        _, group = self.kinds.find(command.group_id)
        step.answer(ticket, commits.delete(group, command, self.offsets, self.settings, step))

    def _drop_topics(self, ticket: Any, command: DropTopics, step: Step) -> None:
        for kind in self.kinds:
            kind.drop_topics(command.topics, step)
        step.answer(ticket, not commits.drop_topics(command.topics, self.offsets, step))

    # -- groups as a whole ----------------------------------------------------------------------------------------

    def _list(self, ticket: Any, command: ListGroups, step: Step) -> None:
        found = chain.from_iterable(kind.listed() for kind in self.kinds)
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
        kind, group = self.kinds.find(command.group_id)
        group.check_delete()
        if commits.drop_all(command.group_id, self.offsets, step):
            kind.delete(ticket, command.group_id, step)
        else:
            step.answer(ticket, True)

    # -- time -----------------------------------------------------------------------------------------------------

    def _tick(self, ticket: Any, _: Tick, step: Step) -> None:
        self._timers.fire_due(step, TIMERS_A_TICK, commits.STEP_BYTES)
        step.answer(ticket, None)

    def _expire(self, step: Step) -> None:
        """Execute one step of a round over all groups. The next step follows at once, the next round after the
        interval."""
        if self._expiring is None:
            self._expiring = iter([*chain.from_iterable(kind.expiring() for kind in self.kinds)])
        for _ in range(GROUPS_A_TICK):
            group_id = next(self._expiring, None)
            if group_id is None:
                self._expiring = None
                self._timers.set(self._expiry, step.now_ms + self.settings.offsets_retention_check_interval_ms)
                return
            kind = self.kinds.of(group_id)
            if kind is None:
                continue
            group = kind.groups[group_id]
            expired = commits.expire(group, self.offsets, self.settings, step)
            if step.size_bytes >= commits.STEP_BYTES:
                self._expiring = chain([group_id], self._expiring)
                break
            if expired and group.may_expire:
                kind.forget(group_id, step)
        self._timers.set(self._expiry, step.now_ms)
