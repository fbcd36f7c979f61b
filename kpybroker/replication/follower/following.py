"""What a follower does with its log: where it asks from, what it takes over, where it cuts (KIP-101, KIP-279, KIP-595).

A follower says with each fetch which leader epoch its last record is of. Where the leader's log has another history the
leader answers with the epoch up to which both may agree, and where that ended; the follower cuts its log there and asks
again. Nothing in here waits.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.chronicle import log as chronicle
from kpybroker.raft.core.divergence import Diverges, truncation
from kpybroker.replication.partition.partition import Partition
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import Batch, split

if TYPE_CHECKING:
    from kpybroker.wire.rpc.fetch import PartitionData

log = logging.getLogger(__name__)

NO_EPOCH = -1


class Place(NamedTuple):
    """Where a follower is: in which leader epoch it asks, from which offset on, after a record of which epoch."""

    leader_epoch: int
    offset: int
    last_epoch: int


def place_of(partition: Partition) -> Place:
    """Where the partition goes on: at the end of what is written. Raises Damage; KafkaError: not now.

    A log whose records are of no known epoch is believed up to its high watermark only.
    """
    storage = partition.log
    if storage.written_end < storage.end and storage.behind is None:
        storage.flush(wait=False)
    if storage.epochs.latest == NO_EPOCH and storage.end > storage.high_watermark:
        storage.truncate_to(storage.high_watermark)
    return Place(partition.leader_epoch, storage.written_end, storage.epochs.latest)


def take(partition: Partition, place: Place, row: PartitionData) -> bool:
    """Take over what the leader answered to a fetch from `place`; whether the next one will ask from elsewhere.

    An answer that is too late, because the leader or the log has changed, is dropped. Raises KafkaError: the row's own
    error, CORRUPT_MESSAGE; Damage: the log is offline.
    """
    storage = partition.log
    if partition.leads or partition.offline is not None or place != place_of(partition):
        return False
    if row.error_code:
        raise KafkaError(_known(row.error_code))
    if row.diverging_epoch is not None and row.diverging_epoch.end_offset >= 0:
        cut(partition, truncation(storage.epochs.entries, storage.end, _told(row)))
        return True
    moved = False
    if row.records:
        assert not isinstance(row.records, list), "only who answers has pieces"
        batches = _sound(split(row.records), place)
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
    """Forget what the leader does not have. Raises Damage; KafkaError: not now."""
    storage = partition.log
    if offset < storage.high_watermark:
        log.warning(
            "%r is cut to %d, below its high watermark %d: the leader was elected uncleanly",
            partition,
            offset,
            storage.high_watermark,
        )
    before = storage.end
    storage.truncate_to(offset)
    if storage.end < before:
        chronicle.info(
            "%s-%d is cut from %d to %d: its leader has another history",
            partition.topic,
            partition.index,
            before,
            storage.end,
        )


def begin_at(partition: Partition, offset: int) -> None:
    """Forget everything and go on from the leader's start. Raises Damage; KafkaError: not now."""
    storage = partition.log
    log.warning("%r begins anew at offset %d, where the leader's log begins", partition, offset)
    _empty(storage, offset)


def follow_marks(partition: Partition, high_watermark: int, log_start: int) -> None:
    """The leader's high watermark, as far as the log reaches, and where its log begins. Raises KafkaError."""
    storage = partition.log
    agreed = min(high_watermark, storage.end)
    if agreed > storage.high_watermark:
        storage.advance(agreed)
        partition.wake_fetches()
    start = min(log_start, storage.high_watermark)
    if start > storage.start:
        storage.advance_start(start)


def _begin_at(partition: Partition, first: Batch) -> None:
    """The leader's log begins within this batch: an empty log may begin with all of it."""
    storage = partition.log
    if storage.start < storage.end or first.next_offset <= storage.end:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"a batch from offset {first.base_offset} where {storage.end} is next"
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


def _sound(batches: list[Batch], place: Place) -> list[Batch]:
    """Batches in order, whole, and none of a later leader. Raises CORRUPT_MESSAGE."""
    end = batches[0].base_offset
    if batches[-1].next_offset <= place.offset:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"what ends below offset {place.offset} was not asked for")
    for batch in batches:
        if batch.base_offset < end or batch.leader_epoch > place.leader_epoch or not batch.crc_ok():
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"a batch from offset {batch.base_offset} of leader epoch {batch.leader_epoch} is out of order, of a "
                "leader to come, or damaged on its way",
            )
        end = batch.next_offset
    return batches


def _known(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
