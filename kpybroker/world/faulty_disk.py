"""A disk with faults, for brokers of tests: it is full, slow, stuck or broken for some files, or frozen by a kill."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kpybroker.world import Buffer, Disk, PendingWrite
from kpybroker.world.devices import Device

FAULTS_MAX = 100
FULL, BROKEN, SLOW, STUCK = "full", "broken", "slow", "stuck"
KINDS = {
    FULL: "writes fail with ENOSPC",
    BROKEN: "reads, writes and syncs fail with EIO",
    SLOW: "each write and each sync takes longer",
    STUCK: "syncs do not end until the fault is removed",
}
"""The kinds of faults, with their effects."""


class DiskFaultRule(NamedTuple):
    """The files that a fault affects, and its effect on them."""

    kind: str
    files: re.Pattern[str] | None = None
    """What the paths of affected files contain; None: all files."""
    delay_s: float = 0.0
    """For SLOW."""


class DiskFault:
    """A fault and the number of operations that it has affected."""

    def __init__(self, rule: DiskFaultRule) -> None:
        self.rule = rule
        self.hits = 0
        self._removed = asyncio.Event()

    def strikes(self, path: str) -> bool:
        """Whether it affects an operation on this file, which is counted."""
        if self.rule.files is not None and self.rule.files.search(path) is None:
            return False
        self.hits += 1
        return True

    async def wait_until_removed(self) -> None:
        await self._removed.wait()

    def remove(self) -> None:
        """Let what is stuck go on."""
        self._removed.set()


class DoneWrite:
    """A write that has already ended. `error`: why it failed."""

    def __init__(self, error: OSError | None = None) -> None:
        self._error = error

    def when_done(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def result(self) -> None:
        if self._error is not None:
            raise self._error


class FaultyDisk:
    """A Disk that passes calls to another one, unless a fault affects the file.

    It syncs nothing to the device, because the data of a test need not survive a loss of power.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._paths: dict[int, str] = {}
        """The paths of open files."""
        self._numbers = itertools.count(1)
        self._faults: dict[int, DiskFault] = {}
        self._is_frozen = False

    def add(self, rule: DiskFaultRule) -> int:
        """Apply a fault from now on, and return its number. Raises ValueError if there are FAULTS_MAX."""
        if len(self._faults) >= FAULTS_MAX:
            raise ValueError(f"the disk has {FAULTS_MAX} faults already; remove some")
        number = next(self._numbers)
        self._faults[number] = DiskFault(rule)
        return number

    def hits(self, number: int) -> int:
        """The number of operations that a fault has affected. Raises KeyError."""
        return self._faults[number].hits

    def remove(self, number: int) -> int:
        """End a fault. Returns the number of affected operations. Raises KeyError."""
        fault = self._faults.pop(number)
        fault.remove()
        return fault.hits

    def freeze(self) -> None:
        """Let no later call change the disk, and let all calls that would do so succeed, so that a broker that was
        killed in this process can end its tasks."""
        self._is_frozen = True
        for number in list(self._faults):
            self.remove(number)

    def _check_write(self, path: str) -> None:
        """Raise OSError if a write fails, and wait if it is slow."""
        for fault in self._faults.values():
            rule = fault.rule
            if rule.kind in (FULL, BROKEN, SLOW) and fault.strikes(path):
                if rule.kind == SLOW:
                    time.sleep(rule.delay_s)
                else:
                    raise _error(errno.ENOSPC if rule.kind == FULL else errno.EIO, path)

    def _check_read(self, path: str) -> None:
        for fault in self._faults.values():
            if fault.rule.kind == BROKEN and fault.strikes(path):
                raise _error(errno.EIO, path)

    async def _check_sync(self, path: str) -> None:
        for fault in list(self._faults.values()):
            rule = fault.rule
            if rule.kind in (BROKEN, SLOW, STUCK) and fault.strikes(path):
                if rule.kind == BROKEN:
                    raise _error(errno.EIO, path)
                if rule.kind == SLOW:
                    await asyncio.sleep(rule.delay_s)
                else:
                    await fault.wait_until_removed()

    def _path_of(self, handle: int) -> str:
        return self._paths.get(handle, "")

    # ---- files

    def open(self, path: str, *, create: bool = False) -> int:
        if create:
            if self._is_frozen:
                return self._disk.open(path if self._disk.exists(path) else os.devnull)
            if self._faults and not self._disk.exists(path):
                self._check_write(path)
        handle = self._disk.open(path, create=create)
        self._paths[handle] = path
        return handle

    def close(self, handle: int) -> None:
        self._paths.pop(handle, None)
        self._disk.close(handle)

    def has_handles(self, count: int) -> bool:
        return self._disk.has_handles(count)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        if self._faults:
            self._check_read(self._path_of(handle))
        return self._disk.pread(handle, size, offset)

    def pread_nowait(self, handle: int, size: int, offset: int) -> Buffer | None:
        if self._faults:
            self._check_read(self._path_of(handle))
        return self._disk.pread_nowait(handle, size, offset)

    def give_back(self, found: Buffer) -> None:
        self._disk.give_back(found)

    async def cold_read(self, handle: int, size: int, offset: int) -> bytes:
        self._check_read(self._path_of(handle))
        return await self._disk.cold_read(handle, size, offset)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self._is_frozen:
            return sum(map(len, buffers))
        if self._faults:
            self._check_write(self._path_of(handle))
        return self._disk.pwritev(handle, buffers, offset)

    def write_soon(self, handle: int, data: bytes, offset: int) -> PendingWrite:
        if self._is_frozen:
            return DoneWrite()
        if self._faults:
            try:
                self._check_write(self._path_of(handle))
            except OSError as error:
                return DoneWrite(error)
        return self._disk.write_soon(handle, data, offset)

    def separate(self, path: str) -> None:
        self._disk.separate(path)

    def device(self, path: str) -> Device:
        return self._disk.device(path)

    def size(self, handle: int) -> int:
        return self._disk.size(handle)

    def truncate(self, handle: int, size: int) -> None:
        if not self._is_frozen:
            self._disk.truncate(handle, size)

    # ---- directories

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def is_directory(self, path: str) -> bool:
        return self._disk.is_directory(path)

    def path_size(self, path: str) -> int:
        return self._disk.path_size(path)

    def list(self, path: str) -> list[str]:
        return self._disk.list(path)

    def mkdir(self, path: str) -> None:
        if not self._is_frozen:
            if self._faults:
                self._check_write(path)
            self._disk.mkdir(path)

    def hide(self, path: str) -> None:
        self._disk.hide(path)

    def rename(self, old: str, new: str) -> None:
        if not self._is_frozen:
            self._disk.rename(old, new)

    def unlink(self, path: str) -> None:
        if not self._is_frozen:
            self._disk.unlink(path)

    def rmdir(self, path: str) -> None:
        if not self._is_frozen:
            self._disk.rmdir(path)

    def modified_ms(self, path: str) -> int:
        return self._disk.modified_ms(path)

    def free_bytes(self, path: str) -> int:
        is_full = any(fault.rule.kind == FULL and fault.rule.files is None for fault in self._faults.values())
        return 0 if is_full else self._disk.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._disk.total_bytes(path)

    def lock(self, path: str) -> int:
        return self._disk.lock(path)

    # ---- syncs

    async def sync(self, handle: int) -> None:
        if self._faults:
            await self._check_sync(self._path_of(handle))

    async def sync_directory(self, path: str) -> None:
        if self._faults:
            await self._check_sync(path)

    def sync_blocking(self, handle: int) -> None:
        pass

    def sync_directory_blocking(self, path: str) -> None:
        pass

    async def off_loop(self, work: Callable[[], None], path: str = "") -> None:
        await self._disk.off_loop(work, path)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
