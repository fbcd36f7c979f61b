"""The shell around `raft.core`: the log of `__cluster_metadata`, its snapshots, and the Image they make.

A record is committed when a majority of voters, here the one, has it on disk. The Image is moved forward by what has
committed, and told to whoever asked (`on_image`) before any answer of the controller leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from kpybroker.config import BrokerConfig, LogSettings
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.machine import Stored
from kpybroker.metadata.image import Image
from kpybroker.raft import core
from kpybroker.raft.quorum_state import read_quorum_state, write_quorum_state
from kpybroker.raft.snapshots import Snapshots
from kpybroker.storage.directory import METADATA_DIRECTORY, METADATA_TOPIC, Directory, voter_records
from kpybroker.storage.log import Log
from kpybroker.storage.partition_metadata import write_partition_metadata
from kpybroker.wire.batch import Record, encode_batch, read_records, split
from kpybroker.wire.snapshot import LEADER_CHANGE, control_record
from kpybroker.wire.stored import quorum as messages
from kpybroker.wire.stored.metadata import frame_record, unframe_record
from kpybroker.world import World

log = logging.getLogger(__name__)

METADATA_TOPIC_ID = bytes(15) + b"\x01"
READ_BYTES = 1 << 20


class Quorum:
    """The metadata log of this node, a StateLog for the controller. `start`, then use, then `close`."""

    def __init__(self, world: World, config: BrokerConfig, directory: Directory, voter: tuple[str, str, int]) -> None:
        self._world = world
        self._config = config
        self._directory = directory
        self._voter = voter
        self.path = f"{directory.path}/{METADATA_DIRECTORY}"
        self.image = Image()
        self._on_image: Callable[[Image, Image], None] = _nobody_asks
        self._on_committed: Callable[[], None] | None = None
        self._on_damage: Callable[[str], None] = log.critical
        self._uncommitted: deque[tuple[int, list[Any]]] = deque()
        self._syncing: asyncio.Task[None] | None = None
        self._snapshots = Snapshots(world, config, self.path)
        self.log: Log
        self.state: core.State

    # ---- start

    def start(self) -> None:
        """Open the log, replay it, and lead. May wait for the disk. Raises Damage."""
        world = self._world
        world.disk.mkdir(self.path)
        settings = LogSettings(
            segment_bytes=self._config.metadata_log_segment_bytes,
            segment_ms=self._config.metadata_log_segment_ms,
            retention_ms=-1,
        )
        base = self._snapshots.load_newest()
        self.log = Log.open(world, self.path, METADATA_TOPIC, 0, settings, clean=False, recovery_point=0)
        write_partition_metadata(world.disk, self.path, METADATA_TOPIC_ID)
        if base is not None:
            self.image = base
        self._replay_log()
        voted = read_quorum_state(world, self.path)
        node_id = self._directory.node_id
        self.state = core.State(node_id, (node_id,), voted)
        self._step(core.ElectionTimeout(self.log.end))

    def _replay_log(self) -> None:
        storage = self.log
        offset = max(self.image.offset + 1, storage.start)
        while offset < storage.end:
            found = storage.read_blocking(offset, READ_BYTES)
            for batch in split(found):
                records = [] if batch.is_control else [unframe_record(r.value or b"") for r in read_records(batch)]
                self.image = self.image.apply(records, batch.last_offset, batch.leader_epoch)
                offset = batch.next_offset

    @property
    def is_new(self) -> bool:
        """Nothing was ever written but this node's own election."""
        return not self.image.features

    # ---- StateLog

    @property
    def epoch(self) -> int:
        return self.state.voted.epoch

    @property
    def end(self) -> int:
        return self.log.end

    @property
    def committed(self) -> int:
        return self.state.high_watermark

    def on_committed(self, callback: Callable[[], None]) -> None:
        self._on_committed = callback

    def on_image(self, callback: Callable[[Image, Image], None]) -> None:
        """Tell of every committed change: (the Image before, the Image after)."""
        self._on_image = callback

    def on_damage(self, callback: Callable[[str], None]) -> None:
        """Tell when the metadata log can no longer be written: this node cannot go on."""
        self._on_damage = callback

    def append(self, records: Sequence[Stored]) -> int:
        """Append as one batch; it commits when it is on disk. Raises NOT_CONTROLLER."""
        if not self.state.is_leader or self.log.offline is not None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        now_ms = self._world.wall_ms()
        rows = [Record(0, now_ms, None, record.value) for record in records]
        self._write(rows, now_ms, control=False)
        messages_of = [r.message if r.message is not None else unframe_record(r.value or b"") for r in records]
        self._uncommitted.append((self.log.end, messages_of))
        return self.log.end

    async def replay(self) -> AsyncIterator[Stored]:
        """The records that make the committed Image: a snapshot, as it were."""
        for record in self.image.records():
            yield Stored(None, frame_record(record), message=record)

    # ---- the shell

    def _step(self, event: core.Event) -> None:
        self.state, effects = core.step(self.state, event)
        for effect in effects:
            if isinstance(effect, core.Persist):
                write_quorum_state(self._world, self.path, effect.voted)
            elif isinstance(effect, core.Lead):
                self._begin_epoch(effect)
            else:
                self._commit(effect.end)

    def _begin_epoch(self, lead: core.Lead) -> None:
        """The epoch's first records: who leads, and in the first epoch who votes."""
        now_ms = self._world.wall_ms()
        message = messages.LeaderChangeMessage(
            version=0,
            leader_id=self.state.node_id,
            voters=[messages.Voter(voter_id=voter) for voter in self.state.voters],
            granting_voters=[messages.Voter(voter_id=voter) for voter in lead.granting],
        )
        rows = [control_record(LEADER_CHANGE, message, now_ms)]
        if self.log.end == 0:
            rows += voter_records(self._directory, self._voter, now_ms)
        self._write(rows, now_ms, control=True)
        self._uncommitted.append((self.log.end, []))

    def _write(self, rows: list[Record], now_ms: int, *, control: bool) -> None:
        epoch = self.epoch
        batch = encode_batch(rows, timestamp_ms=now_ms, leader_epoch=epoch, control=control)
        try:
            self.log.append(split(memoryview(batch)), epoch, now_ms, client=False)
            self.log.flush()
        except Damage as damage:
            self._on_damage(str(damage))
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage)) from damage
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
        before, records, last = self.image, [], -1
        while self._uncommitted and self._uncommitted[0][0] <= end:
            last, some = self._uncommitted.popleft()
            records += some
        if last >= 0:
            self.image = before.apply(records, last - 1, self.epoch)
            if records:
                self._on_image(before, self.image)
        if self._on_committed is not None:
            self._on_committed()
        self._snapshots.after_commit(self.image, self.log, lambda now_ms: self.control_records(now_ms))

    def control_records(self, now_ms: int) -> list[Record]:
        """The version of KRaft and the voters, for the head of a snapshot."""
        return voter_records(self._directory, self._voter, now_ms)

    async def settle(self) -> None:
        """Until everything appended has committed."""
        while self._syncing is not None:
            await asyncio.shield(self._syncing)

    async def close(self) -> None:
        """Sync what is written and close the files."""
        await self.settle()
        self.log.close()


def _nobody_asks(before: Image, after: Image) -> None:
    """The Image before a broker has joined."""
