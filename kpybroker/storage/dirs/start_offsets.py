"""The file log-start-offset-checkpoint, with start offsets that are not the base offset of the first segment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from kpybroker.storage.files.checkpoint_files import LOG_STARTS, write_offsets
from kpybroker.topics import TopicPartition
from kpybroker.world import Disk

log = logging.getLogger(__name__)


class StartOffsets:
    """The file of one log directory. It has one writer at a time, so that older rows cannot replace newer ones."""

    def __init__(self, disk: Disk, directory: str, rows: Callable[[], dict[TopicPartition, int]]) -> None:
        """`rows()` returns the rows that the file should have, as a new dictionary each time."""
        self._disk = disk
        self._directory = directory
        self._rows = rows
        self._on_disk: dict[TopicPartition, int] | None = None
        self._writing: asyncio.Future[OSError | None] | None = None

    def save(self) -> None:
        """Write the rows if they have changed, without a sync. Raises OSError.

        If a thread is already writing, it will write the new rows as well.
        """
        if self._writing is None and (rows := self._rows()) != self._on_disk:
            self._write(rows)
            self._on_disk = rows

    def save_soon(self) -> None:
        """Like `save`, but on the directory's thread if the device is slow. Raises OSError."""
        if not self._disk.device(self._directory).is_slow:
            self.save()
        elif self._writing is None and self._rows() != self._on_disk:
            self._writing = asyncio.ensure_future(self._write_by_thread())

    async def written(self, key: TopicPartition, offset: int) -> None:
        """Return once the start offset of a partition is in the file, after `save_soon`. Raises OSError."""
        while self._writing is not None and (self._on_disk or {}).get(key, 0) < offset:
            await self.write_ended()

    async def write_ended(self) -> None:
        """Return when the current write has ended. Raises OSError."""
        if self._writing is not None and (error := await asyncio.shield(self._writing)) is not None:
            raise error

    async def settle(self) -> None:
        """Return once no thread is writing the file."""
        while self._writing is not None:
            await asyncio.shield(self._writing)

    def _write(self, rows: dict[TopicPartition, int]) -> None:
        write_offsets(self._disk, f"{self._directory}/{LOG_STARTS}", rows, sync=False)

    async def _write_by_thread(self) -> OSError | None:
        """Write the rows, and write again if they have changed in the meantime. Log and return the error, if any."""
        rows = self._rows()
        try:
            await self._disk.off_loop(partial(self._write, rows), self._directory)
        except OSError as error:
            log.error("%s: %s cannot be written: %s", self._directory, LOG_STARTS, error)
            self._writing = None
            return error
        self._on_disk = rows
        self._writing = asyncio.ensure_future(self._write_by_thread()) if self._rows() != rows else None
        return None
