"""The shell around `raft.core`: the log of `__cluster_metadata`, its snapshots, and the Image they make.

A record is committed when a majority of voters, here the one, has it on disk. The Image is moved forward by what has
committed, and told to whoever asked (`on_image`) before any answer of the controller leaves (`on_committed`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

from kpybroker.config import BrokerConfig
from kpybroker.errors import ConfigError, Damage, ErrorCode, KafkaError
from kpybroker.machine import Stored
from kpybroker.metadata.image import Image
from kpybroker.raft import core
from kpybroker.raft.loading import FIRST_RECORDS, Voters, check_level, open_log, replay_log
from kpybroker.raft.quorum_state import read_quorum_state, write_quorum_state
from kpybroker.raft.snapshots import Snapshots
from kpybroker.storage.directory import Directory
from kpybroker.storage.formatting import METADATA_DIRECTORY, read_bootstrap
from kpybroker.storage.log import Log
from kpybroker.storage.retention import unlink_all
from kpybroker.wire.batch import encode_batch, split
from kpybroker.wire.snapshot import LEADER_CHANGE, Row, control_record
from kpybroker.wire.stored import quorum as messages
from kpybroker.wire.stored.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    frame_record,
)
from kpybroker.world import World

log = logging.getLogger(__name__)

BATCH_LIMIT_BYTES = 8 << 20
"""Kafka's limit for what one decision of the controller writes."""


class Pending(NamedTuple):
    """Appended, not yet committed."""

    end: int
    records: list[Any]


class Quorum:
    """The metadata log of this node, a StateLog for the controller. `start`, then use, then `close`."""

    def __init__(self, world: World, config: BrokerConfig, directory: Directory) -> None:
        self._world = world
        self._config = config
        self._directory = directory
        self.path = f"{directory.path}/{METADATA_DIRECTORY}"
        self.image = Image()
        """Of what has committed."""
        self._on_image: Callable[[Image, Image], None] = _nobody_asks
        self._on_committed: list[Callable[[], None]] = []
        self._on_damage: Callable[[str], None] = log.critical
        self._pending: deque[Pending] = deque()
        self._syncing: asyncio.Task[None] | None = None
        self._snapshotting: asyncio.Task[None] | None = None
        self._snapshots = Snapshots(world, config, self.path)
        self._voters = Voters(directory.node_id, directory.directory_id)
        self.log: Log
        self.state: core.State

    # ---- start and stop

    async def start(self) -> None:
        """Open the log, replay it, lead, and in a new directory write its first records; then all is committed.

        Raises ConfigError: the log cannot be read, is of a newer version, or has voters beside this node.
        """
        try:
            self._world.disk.mkdir(self.path)
            base = self._snapshots.load_newest()
            if base is not None:
                self._voters.learn(base.control)
                self.image = Image().apply(base.records, base.end - 1, base.epoch)
            self.log = open_log(self._world, self._config, self.path, base.end if base else 0)
            if base is None and self.log.end == 0 and not self._config.controller_quorum_voters:
                raise Damage("there is neither a snapshot, as formatting leaves one, nor a log")
            self.image = await replay_log(self.log, self.image, self._voters, self._snapshots)
            check_level(self.image, self.path)
            self._voters.check(self.path)
            voted = read_quorum_state(self._world, self.path)
            epoch = max(voted.epoch, self.image.epoch, self.log.epochs.latest)
            node_id = self._directory.node_id
            self.state = core.State(node_id, (node_id,), core.Voted(epoch) if epoch > voted.epoch else voted)
            self._step(core.ElectionTimeout(self.log.end))
            self._begin_cluster()
            await self.settle()
        except (Damage, OSError) as reason:
            raise ConfigError(
                f"the metadata log in {self.path} cannot be used: {reason}; {_way_out(reason)}"
            ) from reason

    def _begin_cluster(self) -> None:
        """What a leader writes before anybody else may: the end of half a transaction, the first features."""
        if self.image.in_transaction:
            self._write_data([AbortTransactionRecord(reason="The controller that began it is gone.")])
        if not self.image.features:
            known = read_bootstrap(self._world, self._directory.path)
            records = FIRST_RECORDS if known is None else known
            begin = BeginTransactionRecord(name="Bootstrap records")
            self._write_data([begin, *records, EndTransactionRecord()])

    async def settle(self) -> None:
        """Until everything appended has committed. Raises Damage where it never will."""
        while self._syncing is not None:
            await asyncio.shield(self._syncing)
        if self.log.offline is not None:
            raise Damage(self.log.offline)

    async def close(self) -> None:
        """Sync what is written and close the files; a log that is damaged is only closed."""
        while (task := self._syncing or self._snapshotting) is not None:
            await asyncio.shield(task)
        try:
            self.log.close()
        except Damage as damage:
            log.error("the metadata log was not closed in order: %s", damage)

    # ---- StateLog

    @property
    def epoch(self) -> int:
        return self.state.voted.epoch

    @property
    def kraft_version(self) -> int:
        """The level of the feature kraft.version; control records say it, so it is not in the Image."""
        return self._voters.kraft_version

    @property
    def end(self) -> int:
        """The offset that the next record gets; a broker's epoch is made of it."""
        return self.log.end

    @property
    def committed(self) -> int:
        return self.state.high_watermark

    @property
    def is_writing_snapshot(self) -> bool:
        return self._snapshotting is not None

    def on_committed(self, callback: Callable[[], None]) -> None:
        self._on_committed.append(callback)

    def on_image(self, callback: Callable[[Image, Image], None]) -> None:
        """Tell of every committed change: (the Image before, the Image after)."""
        self._on_image = callback

    def on_damage(self, callback: Callable[[str], None]) -> None:
        """Tell when the metadata log can no longer be written: this node cannot go on."""
        self._on_damage = callback

    def append(self, records: Sequence[Stored]) -> int:
        """Append as one batch; it commits when it is on disk. Raises KafkaError, and then nothing was appended; Damage.

        NOT_CONTROLLER; INVALID_REQUEST for what no record can hold; POLICY_VIOLATION for more than fits into a batch:
        what is decided at once is written at once.
        """
        if not self.state.is_leader or self.log.offline is not None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        try:
            for record in records:
                if record.value is None:
                    record.value = frame_record(record.message)
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
        self._write_data([record.message for record in records], [record.value or b"" for record in records])
        return self.log.end

    async def replay(self) -> AsyncIterator[Stored]:
        """The records that make the committed Image, as a snapshot has them: no offsets, no frames."""
        for record in self.image.records():
            yield Stored(None, None, message=record)

    # ---- the shell

    def _step(self, event: core.Event) -> None:
        self.state, effects = core.step(self.state, event, self._world.wall_ms(), self._world.random)
        for effect in effects:
            if isinstance(effect, core.Persist):
                write_quorum_state(self._world, self.path, effect.voted, self._voters.static)
            elif isinstance(effect, core.Lead):
                self._begin_epoch(effect)
            else:
                self._commit(effect.end)

    def _begin_epoch(self, lead: core.Lead) -> None:
        """The epoch's first records: who leads, and at the very start of a log who votes."""
        message = messages.LeaderChangeMessage(
            leader_id=self.state.node_id,
            voters=[messages.Voter(voter_id=voter) for voter in self.state.voters],
            granting_voters=[messages.Voter(voter_id=voter) for voter in lead.granting],
        )
        rows = [control_record(LEADER_CHANGE, message)]
        if self.log.end == 0:
            rows += self._voters.records()
        self._write(rows, [], control=True)

    def _write_data(self, records: list[Any], frames: list[bytes] | None = None) -> None:
        frames = frames or [frame_record(record) for record in records]
        self._write([(None, frame) for frame in frames], records, control=False)

    def _write(self, rows: list[Row], records: list[Any], *, control: bool) -> None:
        """Append a batch; a sync is under way when this returns. One timestamp for all: Kafka reads no other."""
        epoch, now_ms = self.epoch, self._world.wall_ms()
        batch = encode_batch(rows, timestamp_ms=now_ms, leader_epoch=epoch, control=control)
        if len(batch) > BATCH_LIMIT_BYTES:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"{len(rows)} metadata records at once are too many; ask for less at a time"
            )
        try:
            self.log.append(split(memoryview(batch)), epoch, now_ms, client=False)
            self.log.flush()
        except (Damage, KafkaError) as reason:
            self._on_damage(str(reason))
            raise Damage(str(reason)) from reason
        self._pending.append(Pending(self.log.end, records))
        self._snapshots.appended(0 if control else len(batch), now_ms)
        if self._syncing is None:
            self._syncing = asyncio.get_running_loop().create_task(self._sync())

    async def _sync(self) -> None:
        """Group commit: one fdatasync at a time, each for all that was appended before it began."""
        try:
            while self.log.synced_end < self.log.written_end:
                await self.log.sync()
                self._step(core.Synced(self.state.node_id, self.log.synced_end))
        except Damage as damage:
            self._on_damage(str(damage))
        finally:
            self._syncing = None

    def _commit(self, end: int) -> None:
        self.log.high_watermark = self.log.last_stable = end
        before, records = self.image, []
        while self._pending and self._pending[0].end <= end:
            records += self._pending.popleft().records
        self.image = before.apply(records, end - 1, self.epoch)
        if records:
            self._on_image(before, self.image)
        for callback in self._on_committed:
            callback()
        if self._snapshotting is None and self._snapshots.is_due() and not self.image.in_transaction:
            self._snapshotting = asyncio.get_running_loop().create_task(self._snapshot())

    async def _snapshot(self) -> None:
        """Write a snapshot of what has committed, then let go what older snapshots and the log no longer need.

        A new segment begins here: a restart checks the log from the segment that the snapshot ends in.
        """
        try:
            self.log.roll()
            await self._snapshots.write(self.image, self._voters.records())
            oldest = await self._snapshots.forget(self.log.size_bytes)
            if oldest > self.log.start:
                self.log.advance_start(oldest)
                self.log.apply_retention(self._world.wall_ms())
                gone = self.log.take_garbage()
                await self._world.disk.off_loop(lambda: unlink_all(self._world.disk, gone))
        except (OSError, Damage, KafkaError) as error:
            log.error("no metadata snapshot this time: %s", error)
        finally:
            self._snapshotting = None


def _nobody_asks(before: Image, after: Image) -> None:
    """The Image before a broker has joined."""


def _way_out(reason: BaseException) -> str:
    """What to do about a log that cannot be used: one whose disk refuses may be whole."""
    cause: BaseException | None = reason
    while cause is not None:
        if isinstance(cause, OSError):
            return "start again once the disk can be read and written: what was acknowledged is kept"
        cause = cause.__cause__
    return "restore it from a copy, or begin anew with an empty directory (log.dirs)"
