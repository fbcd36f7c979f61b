"""A metadata log at start: opened, replayed, and its voters learnt."""

from __future__ import annotations

from typing import Any

from kpybroker.config import BrokerConfig, LogSettings
from kpybroker.errors import ConfigError, Damage
from kpybroker.metadata.image import Image
from kpybroker.raft.snapshots import Snapshots
from kpybroker.storage.checkpoint_files import PARTITION_METADATA, write_topic_id
from kpybroker.storage.formatting import METADATA_TOPIC, encode_id
from kpybroker.storage.log import Log
from kpybroker.storage.retention import begin_anew
from kpybroker.wire.batch import read_records, split
from kpybroker.wire.snapshot import KRAFT_VERSION, KRAFT_VOTERS, Row, control_record, read_control
from kpybroker.wire.stored import quorum as messages
from kpybroker.wire.stored.metadata import FeatureLevelRecord, unframe_record
from kpybroker.world import World

METADATA_TOPIC_ID = bytes(15) + b"\x01"
METADATA_VERSION = 30
"""4.3-IV0: the newest metadata.version whose records are known here."""
FIRST_RECORDS = [FeatureLevelRecord(name="metadata.version", feature_level=METADATA_VERSION)]
"""What a cluster begins with where no bootstrap.checkpoint says otherwise."""
READ_BYTES = 1 << 20
BATCH_LIMIT_BYTES = 8 << 20


def open_log(world: World, config: BrokerConfig, path: str, snapshot_end: int) -> Log:
    """The log, every batch behind the snapshot checked, and a torn tail cut. May wait for the disk. Raises Damage."""
    settings = LogSettings(
        segment_bytes=config.metadata_log_segment_bytes,
        segment_ms=config.metadata_log_segment_ms,
        max_message_bytes=BATCH_LIMIT_BYTES,
        retention_ms=-1,
        file_delete_delay_ms=0,
    )
    log = Log.open(world, path, METADATA_TOPIC, 0, settings, clean=False, recovery_point=snapshot_end)
    if not world.disk.exists(f"{path}/{PARTITION_METADATA}"):
        write_topic_id(world.disk, path, METADATA_TOPIC_ID)
    if log.end < snapshot_end:
        begin_anew(log, snapshot_end)
    if log.start > snapshot_end:
        raise Damage(f"the log begins at offset {log.start}, and the newest readable snapshot ends at {snapshot_end}")
    return log


async def replay_log(log: Log, image: Image, voters: Voters, snapshots: Snapshots) -> Image:
    """The Image after all that the log has beyond it. Raises Damage."""
    offset = image.offset + 1
    while offset < log.end:
        found = log.read(offset, READ_BYTES, upper=log.end, min_one=True)
        if found is None:
            found = await log.read_cold(offset, READ_BYTES, upper=log.end, min_one=True)
        for batch in split(found):
            rows = list(read_records(batch))
            if batch.is_control:
                voters.learn([read_control(row) for row in rows])
                records = []
            else:
                records = [unframe_record(row.value or b"") for row in rows if row.offset >= offset]
                snapshots.appended(batch.size_bytes, batch.max_timestamp)
            image = image.apply(records, batch.last_offset, batch.leader_epoch)
            offset = batch.next_offset
    return image


def check_level(image: Image, path: str) -> None:
    """Raises ConfigError where the log was written by a newer Kafka than its records are known of."""
    level = image.features.get("metadata.version", METADATA_VERSION)
    if level > METADATA_VERSION:
        raise ConfigError(
            f"{path} is at metadata.version {level}, and up to {METADATA_VERSION} (4.3-IV0) is known here; use a newer "
            "kpybroker, or another directory (log.dirs)"
        )


class Voters:
    """Who votes, as the log and its snapshots say (KIP-853), or by settings alone where they say nothing."""

    def __init__(self, node_id: int, directory_id: bytes) -> None:
        self._node_id = node_id
        self._directory_id = directory_id
        self._kraft_version = 0
        self._voters: messages.VotersRecord | None = None

    def learn(self, control: list[tuple[int, Any]]) -> None:
        """Take in control records: type and message."""
        for kind, message in control:
            if kind == KRAFT_VERSION:
                self._kraft_version = message.kraft_version
            elif kind == KRAFT_VOTERS:
                self._voters = message

    @property
    def kraft_version(self) -> int:
        """1 where the log knows its voters (KIP-853)."""
        return self._kraft_version

    @property
    def static(self) -> tuple[int, ...]:
        """The voters of kraft.version 0; empty where the log knows its voters."""
        return () if self._kraft_version else (self._node_id,)

    def check(self, path: str) -> None:
        """Raises ConfigError unless this node, with this directory, is the only voter."""
        if self._voters is None:
            return
        found = [(voter.voter_id, encode_id(voter.voter_directory_id)) for voter in self._voters.voters]
        here = (self._node_id, encode_id(self._directory_id))
        if found != [here]:
            shown = ", ".join(f"{node}-{directory}" for node, directory in found)
            raise ConfigError(
                f"the voters of {path} are {shown}, and this is {here[0]}-{here[1]}; this version serves a quorum of "
                "one: start it on the directory that belongs to it"
            )

    def records(self) -> list[Row]:
        """The control records that say it again; none for kraft.version 0."""
        if self._voters is None:
            return []
        version = messages.KRaftVersionRecord(kraft_version=self._kraft_version)
        return [control_record(KRAFT_VERSION, version), control_record(KRAFT_VOTERS, self._voters)]
