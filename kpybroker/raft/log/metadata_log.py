"""The log of `__cluster_metadata` on this node, with its snapshots and its Image.

It appends, syncs and truncates records, installs snapshots and applies commits, when the driver calls it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kpybroker.config import BrokerConfig
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.machine.contract import Stored
from kpybroker.metadata.difference import with_changes
from kpybroker.metadata.image import Image
from kpybroker.raft.core.divergence import Diverges, truncation
from kpybroker.raft.core.state import Tail
from kpybroker.raft.log.loading import (
    BATCH_LIMIT_BYTES,
    begin_at,
    check_level,
    control_of,
    learn_voters,
    open_log,
    replay_log,
)
from kpybroker.raft.log.replay import PendingBatch, Replay, pending_of
from kpybroker.raft.log.snapshots import Snapshot, Snapshots
from kpybroker.raft.log.voters import Voters
from kpybroker.storage.dirs.formatting import hide_secrets
from kpybroker.storage.log.log import Log
from kpybroker.storage.log.retention import unlink_all
from kpybroker.tasks import begin
from kpybroker.wire.records.batch import Batch, encode_batch, split
from kpybroker.wire.records.snapshot import Row, read_row
from kpybroker.wire.stored.metadata import BeginTransactionRecord
from kpybroker.world import World

log = logging.getLogger(__name__)

LACKS_METADATA = "the leader of the quorum lacks committed metadata"
"""How the reason begins if this node must not follow the leader."""
PIECE_BYTES = 1 << 20
"""A metadata transaction that is larger is split into batches of about this size."""


class MetadataLog:
    """The log, snapshots and Image in one directory. Call `open` before any other method, and `close` at the end."""

    def __init__(self, world: World, config: BrokerConfig, path: str, voters: Voters) -> None:
        self._world = world
        self._config = config
        self._path = path
        self._voters = voters
        self._syncing: asyncio.Task[None] | None = None
        self._snapshotting: asyncio.Task[None] | None = None
        self.snapshots = Snapshots(world, config, path)
        self.log: Log
        self._on_image: Callable[[Image, Image], None] = _ignore
        self._on_applied: Callable[[], None] = lambda: None
        self._on_synced: Callable[[int], None] = lambda end: None
        self._on_voters: Callable[[], None] = lambda: None
        self._on_damage: Callable[[str], None] = log.critical
        self._replay = Replay(self._image_changed, self._applied, self.fail)

    def listen(
        self, on_applied: Callable[[], None], on_synced: Callable[[int], None], on_voters: Callable[[], None]
    ) -> None:
        """Set the callbacks: `on_applied` after records were applied to the Image, `on_synced` with an offset below
        which all records are on disk, and `on_voters` after a change of the voters in the log."""
        self._on_applied, self._on_synced, self._on_voters = on_applied, on_synced, on_voters

    def on_image(self, callback: Callable[[Image, Image], None]) -> None:
        """Set the callback for every committed change. It gets the Image before and the Image after the change."""
        self._on_image = callback

    def on_damage(self, callback: Callable[[str], None]) -> None:
        """Set the callback for a log that can no longer be written or applied."""
        self._on_damage = callback

    @property
    def image(self) -> Image:
        """The metadata of all committed records."""
        return self._replay.image

    @property
    def applied(self) -> int:
        """Every record below this offset has committed and is in the Image."""
        return self._replay.applied

    @property
    def is_safe(self) -> bool:
        """Whether the whole log is on disk, so that a fetch may name `tail`."""
        return self.log.synced_end >= self.log.end

    @property
    def tail(self) -> Tail:
        """The epoch of the log's last record, and the end offset of the log."""
        return Tail(max(self.log.epochs.latest, 0), self.log.end)

    @property
    def is_reading(self) -> bool:
        """Whether committed records are still being read back from the log."""
        return self._replay.is_reading

    @property
    def is_writing_snapshot(self) -> bool:
        return self._snapshotting is not None

    # ---- start and stop

    async def open(self) -> None:
        """Open and recover the log. A sole voter replays the whole log; any other node replays only the snapshot for
        now.

        Raises Damage, OSError, ConfigError.
        """
        self._world.disk.mkdir(self._path)
        hide_secrets(self._world, self._path)
        base = self.snapshots.load_newest()
        image = Image()
        if base is not None:
            self._voters.begin(base.control, base.end)
            image = image.apply(base.records, base.end - 1, base.epoch)
        self.log = await open_log(self._world, self._config, self._path, base)
        if base is None and self.log.end == 0 and self._voters.should_be_in_the_log:
            raise Damage("the directory contains neither a log nor the snapshot that formatting writes")
        await learn_voters(self.log, base.end if base is not None else 0, self._voters)
        if self._voters.are_alone:
            image = await replay_log(self.log, image, self.snapshots)
        else:
            await self.log.sync()
        check_level(image, self._path)
        self._replay.begin(image, self.log)
        self.log.tell(self._written)
        self.log.advance(min(self.applied, self.log.end))

    async def settle(self) -> None:
        """Wait until all appended records are on disk. Raises Damage if they cannot be written."""
        while self._syncing is not None or self.log.behind is not None:
            await (self.log.until_written() if self._syncing is None else asyncio.shield(self._syncing))
        if self.log.offline is not None:
            raise Damage(self.log.offline)

    async def synced(self) -> None:
        """Wait until the whole log is on disk. This starts a sync if none is in progress. Raises Damage."""
        self._sync_soon()
        await self.settle()

    async def close(self) -> None:
        """Sync all written records, and close the files. A damaged log is closed without a sync."""
        while (task := self._syncing or self._snapshotting) is not None:
            await asyncio.shield(task)
        await self.log.until_written()
        await self._replay.stop()
        try:
            self.log.close()
        except Damage as damage:
            log.error("the metadata log was not closed cleanly: %s", damage)

    def fail(self, why: str) -> None:
        """Report that the log can no longer be written or read, so that this node cannot continue."""
        self._on_damage(why)

    # ---- changes

    def append(self, rows: list[Row], records: Sequence[Any], epoch: int, *, control: bool) -> None:
        """Append a batch as the leader, and start a sync. Raises Damage.

        All records get the same timestamp, because Kafka reads only one for each batch. Raises KafkaError if nothing
        was appended: POLICY_VIOLATION for a batch that is too large, or KAFKA_STORAGE_ERROR if file descriptors have
        run out.
        """
        now_ms, base = self._world.wall_ms(), self.log.end
        batch = encode_batch(rows, timestamp_ms=now_ms, leader_epoch=epoch, control=control)
        if len(batch) > BATCH_LIMIT_BYTES:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"{len(rows)} metadata records do not fit into one batch; split the request"
            )
        try:
            self.log.append(split(memoryview(batch)), epoch, now_ms, client=False)
            self._flush()
        except (Damage, KafkaError) as reason:
            if self.log.offline is None and isinstance(reason, KafkaError):
                raise  # the refused batch was not appended
            self.fail(str(reason))
            raise Damage(str(reason)) from reason
        self._replay.appended(PendingBatch(base, self.log.end, epoch, list(records)))
        if control:
            self._learn([read_row(*row) for row in rows], self.log.end)
        self.snapshots.appended(0 if control else len(batch), now_ms)
        self._sync_soon()

    def append_fetched(self, batches: list[Batch]) -> None:
        """Append batches from the leader, which continue the log. Raises Damage, or KafkaError if not all were
        appended. Nothing is appended if a record cannot be read: then other software can use the directory."""
        try:
            pending = [pending_of(batch) for batch in batches]
        except Damage as damage:
            raise Damage(f"{damage}. The leader sent it, and this node has not written it") from damage
        try:
            self.log.append_replicated(batches)
        finally:
            self._flush()
            self._appended_fetched(batches, pending)

    def _flush(self) -> None:
        """Write the queued batches. Raises Damage."""
        try:
            self.log.flush(wait=False)
        except KafkaError as refusal:  # the append has opened the file, so this is damage
            raise self.log.fail(refusal) from refusal

    def _appended_fetched(self, batches: list[Batch], pending: list[PendingBatch]) -> None:
        """Pass the batches that were appended to the replay, the snapshots and the voters, and start a sync."""
        batches = [batch for batch in batches if batch.next_offset <= self.log.end]
        for batch, row in zip(batches, pending, strict=False):
            self._replay.appended(row)
            self.snapshots.appended(0 if batch.is_control else batch.size_bytes, batch.max_timestamp)
        for batch in batches:
            if batch.is_control:
                self._learn(control_of(batch), batch.next_offset)
        self._sync_soon()

    def _learn(self, control: list[tuple[int, Any]], end: int) -> None:
        if self._voters.learn(control, end):
            self._on_voters()

    def truncate(self, told: Diverges) -> None:
        """Truncate the log to the offset below which it may agree with the leader's log. Raises Damage if the leader
        lacks committed records."""
        end = truncation(self.log.epochs.entries, self.log.end, told)
        if end < self.applied or end < self.log.high_watermark:
            raise Damage(
                f"{LACKS_METADATA}: its epoch {told.epoch} ended at {told.end}, "
                f"and this node has committed records up to {self.log.high_watermark}; was a voter's directory lost?"
            )
        log.info("truncating the metadata log from offset %d to %d, to follow its leader", self.log.end, end)
        self.log.truncate_to(end)
        if not self.log.epochs.entries:  # the log is empty: take the epoch from the snapshot before it
            self.log.epochs.assign(self.image.epoch, self.log.end)
        self._replay.cut(self.log.end)
        if self._voters.cut(self.log.end):
            self._on_voters()

    def install(self, snapshot: Snapshot) -> None:
        """Replace the log with a snapshot. Raises Damage, or KafkaError if file descriptors have run out."""
        if snapshot.end <= self.applied:
            return
        image = with_changes(self.image, Image().apply(snapshot.records, snapshot.end - 1, snapshot.epoch))
        check_level(image, self._path)
        self.log.files.pool.require_room(self._world.disk)
        self._voters.begin(snapshot.control, snapshot.end)
        self.log.flush()
        try:
            begin_at(self.log, Tail(snapshot.epoch, snapshot.end))
        except OSError as error:
            raise self.log.fail(error) from error
        self._replay.restart(image)
        self._on_voters()

    def commit(self, end: int) -> None:
        """Raise the high watermark to `end`, and apply the records below it."""
        self.log.advance(end)
        self._replay.commit(end)

    # ---- apply, sync, snapshot

    def _image_changed(self, before: Image, after: Image) -> None:
        self._on_image(before, after)

    def _applied(self) -> None:
        self._on_applied()
        if self._snapshotting is None and self.snapshots.is_due() and not self.image.in_transaction:
            self._snapshotting = begin(self._snapshot(), "writing a metadata snapshot", self.fail)

    def _written(self) -> None:
        """Start a sync after a thread has finished its write, or report that the log has failed."""
        if self.log.offline is not None:
            self.fail(self.log.offline)
        self._sync_soon()

    def _sync_soon(self) -> None:
        if self._syncing is None and self.log.synced_end < self.log.written_end:
            self._syncing = begin(self._sync(), "committing metadata", self.fail)

    async def _sync(self) -> None:
        """Sync the log, with one fdatasync at a time. Each covers all records that were written before it started."""
        try:
            while self.log.synced_end < self.log.written_end:
                await self.log.sync()
                self._on_synced(self.log.synced_end)
        except Damage as damage:
            self.fail(str(damage))
        finally:
            self._syncing = None

    async def _snapshot(self) -> None:
        """Write a snapshot of the Image, then delete old snapshots and the segments before the oldest remaining one.

        This first rolls the log, since a restart checks the log from the segment in which the snapshot ends.
        """
        try:
            self.log.roll()
            end = self.image.offset + 1
            self._voters.settle(end)
            await self.snapshots.write(self.image, self._voters.records(end))
            oldest = await self.snapshots.forget(self.log.size_bytes)
            if oldest > self.log.start:
                self.log.advance_start(oldest)
                self.log.apply_retention(self._world.wall_ms())
                gone = self.log.files.take_garbage()
                await self._world.disk.off_loop(lambda: unlink_all(self._world.disk, gone), self._path)
        except (OSError, Damage, KafkaError) as error:
            log.error("a metadata snapshot could not be written: %s", error)
        finally:
            self._snapshotting = None


def _ignore(before: Image, after: Image) -> None:
    """Do nothing on changes of the Image, until a broker sets its own callback."""


def pieces(records: Sequence[Stored]) -> Iterator[Sequence[Stored]]:
    """Split framed records into batches. Only a metadata transaction is split into several; it stays atomic."""
    if not records or type(records[0].message) is not BeginTransactionRecord:
        yield records
        return
    begin = size_bytes = 0
    for at, record in enumerate(records):
        size_bytes += len(record.value or b"")
        if size_bytes >= PIECE_BYTES:
            yield records[begin : at + 1]
            begin, size_bytes = at + 1, 0
    if begin < len(records):
        yield records[begin:]
