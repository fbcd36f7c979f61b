"""The share partitions of one partition of `__share_group_state`: a Machine (`machine/contract.py`).

Hard state is one ShareState for each share partition, and the offset of its last snapshot: everything below the lowest
of these offsets is no longer needed. Soft state is the time at which each snapshot was written, and the
number of updates that follow it.

After a number of updates, the next record of a key is a snapshot. The last snapshot of a key that is seldom written
would prevent the deletion of all later records. For this reason, a round over all keys writes another snapshot of such
keys, if other keys have been written in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kpybroker.config.component import setting
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.machine.contract import Moment, Outcome, Stored, Tick
from kpybroker.machine.rounds import Round
from kpybroker.metadata.image import Image
from kpybroker.shares import records
from kpybroker.shares.batches import STORED_STATES, StateBatch
from kpybroker.shares.commands import BeginRound, Delete, FindNeeded, Initialize, Read, ReadSummary, Write
from kpybroker.shares.keys import ShareKey
from kpybroker.shares.state import NO_EPOCH, ShareState, initialized

WRITTEN_A_TICK = 100
"""The maximum number of records that one step of a round writes."""
BATCHES_MAX = 20_000
"""The maximum number of batches of one share partition, of 20 bytes each: a snapshot must fit into a batch of the log.
At most twice as many records as `group.share.partition.max.record.locks` are in flight."""


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """The broker's settings for the share coordinator."""

    share_coordinator_snapshot_update_records_per_snapshot: int = setting(
        "share.coordinator.snapshot.update.records.per.snapshot"
    )
    share_coordinator_cold_partition_snapshot_interval_ms: int = setting(
        "share.coordinator.cold.partition.snapshot.interval.ms"
    )
    max_share_partitions: int = 1_000_000
    """The maximum number of share partitions in one partition of `__share_group_state`."""


class ShareMachine:
    """The states by share partition. `image` returns the metadata, to find out which topics exist."""

    def __init__(self, settings: ShareSettings, image: Callable[[], Image]) -> None:
        self.settings = settings
        self.states: dict[ShareKey, ShareState] = {}
        """Hard: the state of each share partition."""
        self.snapshots: dict[ShareKey, int] = {}
        """Hard: the offset of the last snapshot."""
        self._image = image
        self._updates: dict[ShareKey, int] = {}
        """The number of updates that follow the last snapshot of each key."""
        self._snapshot_ms: dict[ShareKey, int] = {}
        """The time at which the last snapshot of each key was written, by the steady clock; unknown for snapshots of
        earlier coordinators."""
        self._now_ms: int | None = None
        """The steady time of the latest decision; None while the log is replayed."""
        self._begun_ms = 0
        """The steady time of the first decision."""
        self._applied = 0
        """The offset after the last applied record."""
        self._round = Round[ShareKey](settings.share_coordinator_cold_partition_snapshot_interval_ms)
        self._decisions: dict[type, Callable[[Any, Any, Moment], Outcome]] = {
            BeginRound: self._begin_round,
            Delete: self._delete,
            FindNeeded: self._find_needed,
            Initialize: self._initialize,
            Read: self._read,
            ReadSummary: self._read_summary,
            Tick: self._tick,
            Write: self._write,
        }

    # ---- Machine

    def decide(self, ticket: Any, command: Any, now: Moment) -> Outcome:
        """Decide one command. Returns the records to write, and the answers to give when they have committed."""
        if self._now_ms is None:
            self._begun_ms = now.steady_ms
        self._now_ms = now.steady_ms
        return self._decisions[type(command)](ticket, command, now)

    def apply(self, record: Stored) -> None:
        """Apply one record to the state. Raises Damage if the record cannot be read: without it, acknowledged records
        could be delivered again."""
        self._applied = record.offset + 1
        kind = records.kind_of(record)
        if kind == records.SNAPSHOT:
            self._apply_snapshot(records.read_key(record), record)
        elif kind == records.UPDATE:
            key = records.read_key(record)
            told, known = records.read_update(record), self.states.get(key)
            if told is not None and known is not None:
                self.states[key] = known.updated(*told)
                self._updates[key] = self._updates.get(key, 0) + 1

    def _apply_snapshot(self, key: ShareKey, record: Stored) -> None:
        state = records.read_snapshot(record)
        for each in (self._updates, self._snapshot_ms):
            each.pop(key, None)
        if state is None:
            self.states.pop(key, None)
            self.snapshots.pop(key, None)
            return
        self.states[key] = state
        self.snapshots[key] = record.offset
        if self._now_ms is not None:
            self._snapshot_ms[key] = self._now_ms

    def deadline_ms(self) -> int | None:
        """The time at which the next step of the round is due. After a replay, it is due at once."""
        return 0 if self._round.at_ms is None else self._round.at_ms

    # ---- checks

    def _check_topic(self, key: ShareKey) -> None:
        image = self._image()
        topic = image.topics.get(image.names.get(key.topic_id, ""))  # with retired partitions, which are still in use
        if topic is None or key.partition >= len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _led(self, key: ShareKey, leader_epoch: int, what: str) -> ShareState:
        """The state, for a leader with this epoch. Raises FENCED_LEADER_EPOCH if a later leader has read the state."""
        known = self.states.get(key)
        if known is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{what} operation on uninitialized share partition not allowed."
            )
        if leader_epoch != NO_EPOCH and leader_epoch < known.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        return known

    # ---- commands

    def _initialize(self, ticket: Any, command: Initialize, now: Moment) -> Outcome:
        _check_partition(command.key)
        known = self.states.get(command.key)
        if known is not None and command.state_epoch != NO_EPOCH and command.state_epoch < known.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        self._check_topic(command.key)
        if known is not None and command.state_epoch == known.state_epoch and known.is_used(command.start):
            return _answer(ticket, None)  # a late retry: members have joined since then, which has begun another epoch
        if known is None and len(self.states) >= self.settings.max_share_partitions:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the limit of share partitions is reached")
        state = initialized(known, command.state_epoch, command.start, now.wall_ms)
        return _answer(ticket, None, records.snapshot_record(command.key, state, now.wall_ms))

    def _read(self, ticket: Any, command: Read, now: Moment) -> Outcome:
        """Stores the epoch of a later leader, so that earlier leaders cannot write any more."""
        _check_partition(command.key)
        known = self._led(command.key, command.leader_epoch, "Read")
        self._check_topic(command.key)
        if command.leader_epoch <= known.leader_epoch:
            return _answer(ticket, known)
        led = known.updated(command.leader_epoch, known.start, known.complete_count)
        update = records.update_record(
            command.key,
            known.snapshot_epoch,
            command.leader_epoch,
            known.start,
            known.complete_count,
            (),
            now.wall_ms,
        )
        return _answer(ticket, led, self._snapshot_in_place(command.key, led, now) or update)

    def _write(self, ticket: Any, command: Write, now: Moment) -> Outcome:
        _check_partition(command.key)
        known = self._led(command.key, command.leader_epoch, "Write")
        if command.state_epoch != NO_EPOCH and command.state_epoch < known.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        self._check_topic(command.key)
        _check_batches(command.batches)
        written = known.updated(known.leader_epoch, command.start, command.complete_count, command.batches)
        if len(written.batches) > BATCHES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"a share partition has at most {BATCHES_MAX} batches of delivery states"
            )
        update = records.update_record(
            command.key,
            known.snapshot_epoch,
            known.leader_epoch,
            command.start,
            command.complete_count,
            command.batches,
            now.wall_ms,
        )
        return _answer(ticket, None, self._snapshot_in_place(command.key, written, now) or update)

    def _snapshot_in_place(self, key: ShareKey, state: ShareState, now: Moment) -> Stored | None:
        """The snapshot to write in place of an update, if enough updates follow the last one; else None."""
        if self._updates.get(key, 0) < self.settings.share_coordinator_snapshot_update_records_per_snapshot:
            return None
        return records.snapshot_record(key, state.as_snapshot(now.wall_ms), now.wall_ms)

    def _delete(self, ticket: Any, command: Delete, now: Moment) -> Outcome:
        _check_partition(command.key)
        self._check_topic(command.key)
        if command.key not in self.states:
            return _answer(ticket, None)
        return _answer(ticket, None, records.tombstone(command.key, now.wall_ms))

    def _read_summary(self, ticket: Any, command: ReadSummary, _now: Moment) -> Outcome:
        _check_partition(command.key)
        self._check_topic(command.key)
        return _answer(ticket, self.states.get(command.key))

    def _find_needed(self, ticket: Any, _: FindNeeded, _now: Moment) -> Outcome:
        return _answer(ticket, min(self.snapshots.values(), default=self._applied))

    # ---- time

    def _begin_round(self, ticket: Any, _: BeginRound, now: Moment) -> Outcome:
        self._round.begin_at(now.steady_ms)
        return self._tick(ticket, Tick(), now)

    def _tick(self, ticket: Any, _: Tick, now: Moment) -> Outcome:
        outcome = _answer(ticket, None)
        image = self._image()
        needed = self._applied - len(self.states)
        for key in self._round.step(self.states, now.steady_ms):
            state = self.states.get(key)
            if state is None:
                continue
            if image.topic_by_id(key.topic_id) is None:
                outcome.records.append(records.tombstone(key, now.wall_ms))
            elif self.snapshots[key] < needed and self._is_cold(key, now.steady_ms):
                outcome.records.append(records.snapshot_record(key, state.as_snapshot(now.wall_ms), now.wall_ms))
            if len(outcome.records) >= WRITTEN_A_TICK:
                return outcome
        return outcome

    def _is_cold(self, key: ShareKey, now_ms: int) -> bool:
        lasted_ms = now_ms - self._snapshot_ms.get(key, self._begun_ms)
        return lasted_ms >= self.settings.share_coordinator_cold_partition_snapshot_interval_ms


def _check_partition(key: ShareKey) -> None:
    if key.partition < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number.")


def _check_batches(batches: Any) -> None:
    for each in batches:
        _check_batch(each)


def _check_batch(batch: StateBatch) -> None:
    if batch.first < 0 or batch.last < batch.first or batch.state not in STORED_STATES or batch.deliveries < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"no records can be in such a state: {batch}")


def _answer(ticket: Any, answer: Any, *written: Stored) -> Outcome:
    return Outcome(list(written), [(ticket, answer)])
