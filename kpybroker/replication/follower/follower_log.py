"""Determines the fetch position of a follower's log, appends responses, and truncates it (KIP-101, KIP-279, KIP-595).

Each Fetch contains the leader epoch of the follower's last record. If the leader's log diverges from the follower's,
the leader returns the last epoch on which both logs may agree, and the end of that epoch. The follower truncates its
log to that offset and fetches again. No function in this module waits.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.chronicle import log as chronicle
from kpybroker.raft.core.divergence import Diverges, truncation
from kpybroker.replication.partition.partition import Partition
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import Batch, whole_batches

if TYPE_CHECKING:
    from kpybroker.wire.rpc.fetch import PartitionData

log = logging.getLogger(__name__)

NO_EPOCH = -1


class FetchPosition(NamedTuple):
    """The position of a Fetch: the current leader epoch, the offset, and the epoch of the record before this offset."""

    leader_epoch: int
    offset: int
    last_epoch: int


def position_of(partition: Partition) -> FetchPosition:
    """The position at the end of the written log. Raises Damage, or KafkaError if the log cannot be written now.

    If the log has no leader epochs, it is first truncated to the high watermark.
    """
    storage = partition.log
    if storage.written_end < storage.end and storage.behind is None:
        storage.flush(wait=False)
    if storage.epochs.latest == NO_EPOCH and storage.end > storage.high_watermark:
        storage.truncate_to(storage.high_watermark)
    return FetchPosition(partition.leader_epoch, storage.written_end, storage.epochs.latest)


def take(partition: Partition, place: FetchPosition, row: PartitionData) -> bool:
    """Apply the leader's response to a Fetch from `place`, and return whether the position has changed.

    A response is dropped if the leader or the log has changed in the meantime. Raises KafkaError with the row's error
    or CORRUPT_MESSAGE, or Damage if the log is offline.
    """
    storage = partition.log
    if partition.leads or partition.offline is not None or place != position_of(partition):
        return False
    if row.error_code:
        raise KafkaError(_known(row.error_code))
    if row.diverging_epoch is not None and row.diverging_epoch.end_offset >= 0:
        cut(partition, truncation(storage.epochs.entries, storage.end, _told(row)))
        return True
    moved = False
    if row.records:
        assert not isinstance(row.records, list), "only a response that this node sends has a list"
        batches = _sound(whole_batches(row.records), place)
        if batches[0].base_offset < storage.end:
            _begin_at(partition, batches[0])
        if storage.files.device.is_slow:
            storage.require_room()
        try:
            storage.append_replicated(batches)
        finally:
            storage.flush(wait=False)
        moved = True
    follow_marks(partition, row.high_watermark, row.log_start_offset)
    return moved


def _told(row: PartitionData) -> Diverges:
    assert row.diverging_epoch is not None
    return Diverges(row.diverging_epoch.epoch, row.diverging_epoch.end_offset)


def cut(partition: Partition, offset: int) -> None:
    """Truncate the log to the offset at which it diverges from the leader's. Raises Damage, or KafkaError if the log
    cannot be truncated now."""
    storage = partition.log
    if offset < storage.high_watermark:
        log.warning(
            "%r is truncated to %d, below its high watermark %d, after an unclean leader election",
            partition,
            offset,
            storage.high_watermark,
        )
    before = storage.end
    storage.truncate_to(offset)
    if storage.end < before:
        chronicle.info(
            "%s-%d is truncated from %d to %d, because it diverges from the log of its leader",
            partition.topic,
            partition.index,
            before,
            storage.end,
        )


def begin_at(partition: Partition, offset: int) -> None:
    """Delete all records, and start the log at the leader's log start. Raises Damage, or KafkaError if that is not
    possible now."""
    storage = partition.log
    log.warning("%r deletes its log and starts again at offset %d, the leader's log start", partition, offset)
    _empty(storage, offset)


def follow_marks(partition: Partition, high_watermark: int, log_start: int) -> None:
    """Adopt the leader's high watermark and log start, but not beyond the end of this log. Raises KafkaError."""
    storage = partition.log
    agreed = min(high_watermark, storage.end)
    if agreed > storage.high_watermark:
        storage.advance(agreed)
        partition.wake_fetches()
    start = min(log_start, storage.high_watermark)
    if start > storage.start:
        storage.advance_start(start)


def _begin_at(partition: Partition, first: Batch) -> None:
    """Start an empty log at the first offset of a batch that contains the leader's log start. Raises
    CORRUPT_MESSAGE."""
    storage = partition.log
    if storage.start < storage.end or first.next_offset <= storage.end:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {first.base_offset} does not follow offset {storage.end}"
        )
    _empty(storage, first.base_offset)


def _empty(storage: Log, offset: int) -> None:
    storage.flush()
    try:
        if not storage.files.made:
            storage.files.make()
        storage.begin_anew(offset)
    except OSError as error:
        raise storage.fail(error) from error


def _sound(batches: list[Batch], place: FetchPosition) -> list[Batch]:
    """Return the batches, if there are any, they are in order and undamaged, and none has a later leader epoch. Raises
    CORRUPT_MESSAGE."""
    if not batches:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the response has no complete batch")
    end = batches[0].base_offset
    if batches[-1].next_offset <= place.offset:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batches below offset {place.offset} were not fetched")
    for batch in batches:
        is_in_order = end <= batch.base_offset < batch.next_offset
        if not is_in_order or batch.leader_epoch > place.leader_epoch or not batch.crc_ok():
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the batch at offset {batch.base_offset} of leader epoch {batch.leader_epoch} is out of order or "
                "damaged, or has a later leader epoch",
            )
        end = batch.next_offset
    return batches


def _known(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
