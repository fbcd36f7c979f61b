"""Records of `__share_group_state` in Kafka's schema: snapshots and updates of share partitions.

A snapshot has the whole state of a share partition; a null value deletes the state. An update has the changes since
then. All updates of a share partition have the same key, so the log must never be compacted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kpybroker.errors import Damage
from kpybroker.machine.contract import Stored
from kpybroker.shares.batches import STORED_STATES, StateBatch
from kpybroker.shares.keys import ShareKey
from kpybroker.shares.state import ShareState
from kpybroker.wire.stored import share_state as stored
from kpybroker.wire.stored.prefixed import build_stored, parse_stored, prefix_of

SNAPSHOT, UPDATE = 0, 1
"""The known kinds of keys. Records with keys of later kinds have no effect."""


def snapshot_record(key: ShareKey, state: ShareState, now_ms: int) -> Stored:
    """The whole state."""
    value = stored.ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start,
        delivery_complete_count=state.complete_count,
        create_timestamp=state.created_ms,
        write_timestamp=state.written_ms,
        state_batches=_stored_batches(state.batches),
    )
    return Stored(_snapshot_key(key), build_stored(value), now_ms)


def update_record(
    key: ShareKey,
    snapshot_epoch: int,
    leader_epoch: int,
    start: int,
    complete_count: int,
    batches: Sequence[StateBatch],
    now_ms: int,
) -> Stored:
    """A change of the state."""
    value = stored.ShareUpdateValue(
        snapshot_epoch=snapshot_epoch,
        leader_epoch=leader_epoch,
        start_offset=start,
        delivery_complete_count=complete_count,
        state_batches=_stored_batches(batches),
    )
    of = stored.ShareUpdateKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
    return Stored(build_stored(of), build_stored(value), now_ms)


def tombstone(key: ShareKey, now_ms: int) -> Stored:
    """The record that deletes the state."""
    return Stored(_snapshot_key(key), None, now_ms)


def kind_of(record: Stored) -> int:
    """SNAPSHOT, UPDATE, or another number for a record that has no effect. Raises Damage."""
    return -1 if record.key is None else prefix_of(record.key)


def read_key(record: Stored) -> ShareKey:
    """The share partition of a snapshot or an update. Raises Damage."""
    assert record.key is not None, "a record of a known kind has a key"
    cls = stored.ShareSnapshotKey if prefix_of(record.key) == SNAPSHOT else stored.ShareUpdateKey
    told: Any = parse_stored(cls, record.key)
    return ShareKey(told.group_id, bytes(told.topic_id), told.partition)


def read_snapshot(record: Stored) -> ShareState | None:
    """The state in a snapshot; None if it deletes the state. Raises Damage."""
    if record.value is None:
        return None
    told = parse_stored(stored.ShareSnapshotValue, record.value)
    return ShareState(
        told.snapshot_epoch,
        told.state_epoch,
        told.leader_epoch,
        told.start_offset,
        told.delivery_complete_count,
        _batches(told.state_batches),
        told.create_timestamp,
        told.write_timestamp,
    )


def read_update(record: Stored) -> tuple[int, int, int, tuple[StateBatch, ...]] | None:
    """Leader epoch, start offset, complete count and batches of an update; None for a null value. Raises Damage."""
    if record.value is None:
        return None
    told = parse_stored(stored.ShareUpdateValue, record.value)
    return told.leader_epoch, told.start_offset, told.delivery_complete_count, _batches(told.state_batches)


def check_record(record: Stored) -> None:
    """Raises Damage if a replay could not read the record."""
    kind = kind_of(record)
    if kind in (SNAPSHOT, UPDATE):
        read_key(record)
        (read_snapshot if kind == SNAPSHOT else read_update)(record)


def _snapshot_key(key: ShareKey) -> bytes:
    return build_stored(stored.ShareSnapshotKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition))


def _stored_batches(batches: Iterable[StateBatch]) -> list[stored.StateBatch]:
    return [
        stored.StateBatch(
            first_offset=each.first, last_offset=each.last, delivery_state=each.state, delivery_count=each.deliveries
        )
        for each in batches
    ]


def _batches(told: Iterable[stored.StateBatch]) -> tuple[StateBatch, ...]:
    found = []
    for each in told:
        if each.first_offset > each.last_offset or each.delivery_state not in STORED_STATES:
            raise Damage(f"an impossible batch of delivery states: {each}")
        found.append(StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count))
    return tuple(found)
