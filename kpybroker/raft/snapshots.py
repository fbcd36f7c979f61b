"""Snapshots of the metadata log: when to write one, the newest on disk, and what may then be forgotten (KIP-630)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from kpybroker.config import BrokerConfig
from kpybroker.errors import Damage
from kpybroker.metadata.image import Image
from kpybroker.storage.directory import write_whole
from kpybroker.storage.log import Log
from kpybroker.wire.batch import Record
from kpybroker.wire.snapshot import decode_snapshot, encode_snapshot
from kpybroker.world import World

log = logging.getLogger(__name__)

NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
KEPT = 2
"""Snapshots that stay, the newest among them: an unreadable one must not be the only one."""
FILE_LIMIT_BYTES = 1 << 32


class Snapshots:
    """The `NNNN-NNNN.checkpoint` files beside a metadata log. Offsets in names are ends: the first not contained."""

    def __init__(self, world: World, config: BrokerConfig, path: str) -> None:
        self._world = world
        self._path = path
        self._every_bytes = config.metadata_log_max_record_bytes_between_snapshots
        self._every_ms = config.metadata_log_max_snapshot_interval_ms
        self._size_before = 0
        self._written_ms = world.wall_ms()

    def _names(self) -> list[tuple[int, int, str]]:
        found = []
        for name in self._world.disk.list(self._path):
            match = NAME.fullmatch(name)
            if match is not None:
                found.append((int(match[1]), int(match[2]), name))
        return sorted(found)

    def load_newest(self) -> Image | None:
        """The Image of the newest snapshot that can be read; None where there is none."""
        if not self._world.disk.exists(self._path):
            return None
        for end, epoch, name in reversed(self._names()):
            handle = self._world.disk.open(f"{self._path}/{name}")
            try:
                data = self._world.disk.pread(handle, FILE_LIMIT_BYTES, 0)
            finally:
                self._world.disk.close(handle)
            try:
                records, _ = decode_snapshot(data, f"{self._path}/{name}")
            except Damage as damage:
                log.error("passed over a snapshot: %s", damage)
                continue
            return Image().apply(records, end - 1, epoch)
        return None

    def after_commit(self, image: Image, storage: Log, control: Callable[[int], list[Record]]) -> None:
        """Write a snapshot if enough was committed since the last one, or long enough ago."""
        now_ms = self._world.wall_ms()
        grown = storage.size_bytes - self._size_before
        if grown < self._every_bytes and (not self._every_ms or now_ms - self._written_ms < self._every_ms):
            return
        self.write(image, storage, control(now_ms))

    def write(self, image: Image, storage: Log, control: list[Record]) -> None:
        """Write the Image's snapshot, and forget the log that older snapshots stood on."""
        now_ms = self._world.wall_ms()
        end, epoch = image.offset + 1, image.epoch
        batches = encode_snapshot(
            image.records(), epoch=epoch, now_ms=now_ms, last_timestamp_ms=now_ms, control=control
        )
        write_whole(self._world, f"{self._path}/{end:020d}-{epoch:010d}.checkpoint", b"".join(batches))
        self._world.disk.sync_directory_blocking(self._path)
        names = self._names()
        for _, _, name in names[:-KEPT]:
            self._world.disk.unlink(f"{self._path}/{name}")
        oldest = names[-KEPT:][0][0]
        storage.roll()
        storage.forget_below(oldest)
        self._size_before, self._written_ms = storage.size_bytes, now_ms
