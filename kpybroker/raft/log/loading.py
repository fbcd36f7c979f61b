"""Opens the metadata log: checks it against its snapshot, and replays it. Also creates the first records of a
leader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from kpybroker.config import BrokerConfig, LogSettings
from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ConfigError, Damage, KafkaError, MalformedFrame
from kpybroker.metadata.image import ELR_FEATURE, Image
from kpybroker.raft.core.state import State, Tail, Timeouts, Voted
from kpybroker.raft.log.identity import METADATA_TOPIC_ID
from kpybroker.raft.log.snapshots import Snapshot, Snapshots
from kpybroker.raft.log.voters import Voters
from kpybroker.storage.dirs.formatting import read_bootstrap
from kpybroker.storage.files.checkpoint_files import PARTITION_METADATA, write_topic_id
from kpybroker.storage.files.file_pool import FilePool
from kpybroker.storage.log.log import Log
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.records.batch import Batch, read_records, split
from kpybroker.wire.records.snapshot import LEADER_CHANGE, Row, control_record, read_control
from kpybroker.wire.stored import quorum as messages
from kpybroker.wire.stored.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    unframe_record,
)
from kpybroker.world import World

METADATA_VERSION = 30
"""The newest supported metadata.version, 4.3-IV0."""
FIRST_RECORDS = [FeatureLevelRecord(name="metadata.version", feature_level=METADATA_VERSION)]
"""The first records of a cluster that has no bootstrap.checkpoint."""
MIN_ISR = "min.insync.replicas"
READ_BYTES = 1 << 20
SCAN_BYTES = 1 << 20
BATCH_LIMIT_BYTES = 8 << 20
"""Kafka's limit for one atomic write of the controller."""
OPEN_FILES = 16
"""The most segments of the metadata log that are open at once."""


async def open_log(world: World, config: BrokerConfig, path: str, base: Snapshot | None) -> Log:
    """Open the log: check every batch after the snapshot, and cut a torn tail. May block on the disk. Raises Damage."""
    settings = LogSettings(
        segment_bytes=config.metadata_log_segment_bytes,
        segment_ms=config.metadata_log_segment_ms,
        max_message_bytes=BATCH_LIMIT_BYTES,
        retention_ms=-1,
        file_delete_delay_ms=0,
    )
    snapshot_end = base.end if base is not None else 0
    log = Log.open(
        world, path, METADATA_TOPIC, 0, settings, clean=False, recovery_point=snapshot_end, pool=FilePool(OPEN_FILES)
    )
    if not world.disk.exists(f"{path}/{PARTITION_METADATA}"):
        write_topic_id(world.disk, path, METADATA_TOPIC_ID)
    if log.start > snapshot_end:
        raise Damage(f"the log starts at offset {log.start}, but the newest readable snapshot ends at {snapshot_end}")
    if base is not None and snapshot_end and not await _holds(log, base):
        begin_at(log, Tail(base.epoch, base.end))
    _believe_batches(log, Tail(base.epoch if base is not None else -1, snapshot_end))
    return log


async def _holds(log: Log, base: Snapshot) -> bool:
    """Whether the log contains the snapshot's records. If not, the snapshot was fetched from a leader, and a crash
    occurred before it replaced the log."""
    if log.end < base.end or log.start >= base.end:
        return log.end >= base.end
    last = base.end - 1
    found = log.read(last, 1, upper=log.end, min_one=True)
    if found is None:
        found = await log.read_cold(last, 1, upper=log.end, min_one=True)
    return bool(found) and split(found)[0].leader_epoch == base.epoch


def begin_at(log: Log, snapshot: Tail) -> None:
    """Empty the log, so that it starts at the end of a snapshot. Raises OSError."""
    log.begin_anew(snapshot.end)
    log.epochs.cut_end(0)
    log.epochs.assign(snapshot.epoch, snapshot.end)


def _believe_batches(log: Log, snapshot: Tail) -> None:
    """Adopt the epochs of the batches after the snapshot.

    After a crash, leader-epoch-checkpoint and the log may differ, since they are written separately. With an epoch that
    the log does not contain, this node might win an election that it must lose.
    """
    wanted = [entry for entry in log.epochs.entries if entry[1] < snapshot.end]
    if snapshot.epoch > (wanted[-1][0] if wanted else -1) and snapshot.end > 0:
        wanted.append((snapshot.epoch, snapshot.end))
    for number in range(log.segments.number_for(snapshot.end), len(log.segments)):
        walk = log.segments[number].walk(0, SCAN_BYTES)
        for _, base_offset, _, _ in walk:
            epoch = walk.header().leader_epoch
            if base_offset >= snapshot.end and epoch > (wanted[-1][0] if wanted else -1):
                wanted.append((epoch, base_offset))
    if wanted != log.epochs.entries:
        log.epochs.cut_end(0)
        for epoch, start in wanted:
            log.epochs.assign(epoch, start, save=False)
        log.epochs.save_if_changed()


async def learn_voters(log: Log, begin: int, voters: Voters) -> None:
    """Read the voters from all control records at or after offset `begin`, committed or not. Raises Damage."""
    async for batch in _batches(log, begin):
        if batch.is_control:
            voters.learn(control_of(batch), batch.next_offset)


def control_of(batch: Batch) -> list[tuple[int, Any]]:
    """The types and messages of the control records in a batch. Raises Damage."""
    try:
        return [read_control(row) for row in read_records(batch)]
    except (KafkaError, MalformedFrame) as error:
        raise Damage(f"the control batch at offset {batch.base_offset} cannot be read: {error}") from error


async def replay_log(log: Log, image: Image, snapshots: Snapshots) -> Image:
    """Apply every record of the log after the Image, and return the new Image. Raises Damage."""
    begin = image.offset + 1
    async for batch in _batches(log, begin):
        records = []
        if not batch.is_control:
            records = [unframe_record(row.value or b"") for row in read_records(batch) if row.offset >= begin]
            snapshots.appended(batch.size_bytes, batch.max_timestamp)
        image = image.apply(records, batch.last_offset, batch.leader_epoch)
    return image


async def _batches(log: Log, offset: int) -> AsyncIterator[Batch]:
    while offset < log.end:
        found = log.read(offset, READ_BYTES, upper=log.end, min_one=True)
        if found is None:
            found = await log.read_cold(offset, READ_BYTES, upper=log.end, min_one=True)
        for batch in split(found):
            yield batch
            offset = batch.next_offset


def check_level(image: Image, path: str) -> None:
    """Raises ConfigError if the Image has a metadata.version that is newer than the supported one."""
    level = image.features.get("metadata.version", METADATA_VERSION)
    if level > METADATA_VERSION:
        raise ConfigError(
            f"{path} is at metadata.version {level}, but this version of kpybroker supports versions up to "
            f"{METADATA_VERSION} (4.3-IV0); use a newer kpybroker, or another directory (log.dirs)"
        )


def first_records(world: World, directory: str, image: Image, min_isr: str) -> list[Any]:
    """The first data records of a leader: the abort of an unfinished transaction, or the features of a new cluster.

    With eligible leader replicas, elections depend on min.insync.replicas, so all brokers must have the same value
    (KIP-966).
    """
    if image.in_transaction:
        return [AbortTransactionRecord(reason="The controller that began the transaction is no longer active.")]
    if image.features:
        return []
    known = read_bootstrap(world, directory)
    records = FIRST_RECORDS if known is None else known
    levels = {record.name: record.feature_level for record in records if isinstance(record, FeatureLevelRecord)}
    if levels.get(ELR_FEATURE):
        shared = ConfigRecord(resource_type=ResourceType.BROKER, resource_name="", name=MIN_ISR, value=min_isr)
        records = [*records, shared]
    return [BeginTransactionRecord(name="Bootstrap records"), *records, EndTransactionRecord()]


def first_state(config: BrokerConfig, voters: Voters, voted: Voted, image: Image, log: Log, *, is_new: bool) -> State:
    """The state after the log was opened. If the log has a later epoch than quorum-state, that file has been lost."""
    epoch = max(voted.epoch, image.epoch, log.epochs.latest)
    told = voters.change
    return State(
        config.node_id,
        told.voters,
        Voted(epoch) if epoch > voted.epoch else voted,
        timing=Timeouts(
            config.controller_quorum_election_timeout_ms,
            config.controller_quorum_election_backoff_max_ms,
            config.controller_quorum_fetch_timeout_ms,
        ),
        high_watermark=0 if voters.are_alone else log.high_watermark,
        voters_end=told.end,
        is_stranger=told.is_stranger,
        is_leaving=told.is_leaving,
        is_new=is_new and not voters.are_alone,
    )


def leader_change(state: State, granting: tuple[int, ...], voters: Voters) -> Row:
    """The first record of a leader's epoch.

    As in Kafka 4.3, the `version` field depends on kraft.version. The record itself is always encoded as version 0,
    because DumpLogSegments reads no other.
    """
    message = messages.LeaderChangeMessage(
        version=min(voters.kraft_version, 1),
        leader_id=state.node_id,
        voters=[messages.Voter(voter_id=voter) for voter in state.voters],
        granting_voters=[messages.Voter(voter_id=voter) for voter in granting],
    )
    return control_record(LEADER_CHANGE, message)


def way_out(reason: BaseException) -> str:
    """The remedy for a log that cannot be used. After an error of the disk, the log may be intact."""
    cause: BaseException | None = reason
    while cause is not None:
        if isinstance(cause, OSError):
            return "start again once the disk can be read and written: acknowledged records are kept"
        cause = cause.__context__  # compiled code does not set __cause__
    return "restore it from a copy, or start over with an empty directory (log.dirs)"
