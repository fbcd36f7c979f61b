"""The part of the real disk that is the same on every system: threads, devices, names, locks.

`posix_disk.py` and `portable_disk.py` read and write the files.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic

from kpybroker.world import Buffer, PendingWrite
from kpybroker.world.devices import SLOW_WRITE_S, Device, Devices
from kpybroker.world.file_locks import lock_file
from kpybroker.world.syncing import sync_directory_to_device

FILE_MODE, DIRECTORY_MODE = 0o640, 0o750
"""Other users of the machine may not read the files, because they contain records, keys of users and settings."""
_THREADS = 16
"""The most reads, writes and syncs that run at the same time on one device."""

_locked: set[tuple[int, int]] = set()
"""The identities of the files that this process has locked."""


def _identity(of: os.stat_result) -> tuple[int, int]:
    return of.st_dev, of.st_ino


class SystemWrite:
    """A write on a thread. Its duration is measured."""

    def __init__(self, disk: SystemDisk, device: Device, size_bytes: int, future: Future[float]) -> None:
        self._disk = disk
        self._device = device
        self._size_bytes = size_bytes
        self._future = future

    def when_done(self, callback: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._future.add_done_callback(lambda _: loop.call_soon_threadsafe(callback))

    def result(self) -> None:
        self._device.took(self._future.result(), self._disk.now_s(), self._size_bytes)


class SystemDisk(ABC):
    """Files through the module os. Calls that may wait for a device run on the device's threads, which are started at
    first use."""

    def __init__(self) -> None:
        self._ordered: dict[Device, ThreadPoolExecutor] = {}
        self._parallel: dict[Device, ThreadPoolExecutor] = {}
        self._devices = Devices()
        self._by_handle: dict[int, Device] = {}
        """The devices of open files."""
        self.now_s = monotonic
        """The clock that times the writes."""
        self._locks: dict[int, tuple[int, int]] = {}
        """The identities of the files that this disk has locked, by handle."""

    # what differs between systems

    def _native(self, path: str) -> str:
        """The path as the system takes it."""
        return path

    @abstractmethod
    def open(self, path: str, *, create: bool = False) -> int: ...

    @abstractmethod
    def _close(self, handle: int) -> None: ...

    @abstractmethod
    def pread(self, handle: int, size: int, offset: int) -> bytes: ...

    @abstractmethod
    def pread_nowait(self, handle: int, size: int, offset: int) -> Buffer | None: ...

    @abstractmethod
    def give_back(self, found: Buffer) -> None: ...

    @abstractmethod
    def _write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write all buffers at an offset, and complete short writes. Returns the number of bytes."""

    @abstractmethod
    def _descriptor(self, handle: int) -> int:
        """The file descriptor of an open file. Raises OSError."""

    @abstractmethod
    def truncate(self, handle: int, size: int) -> None: ...

    @abstractmethod
    def rename(self, old: str, new: str) -> None: ...

    @abstractmethod
    def unlink(self, path: str) -> None: ...

    @abstractmethod
    def sync_blocking(self, handle: int) -> None: ...

    # what is the same on all of them

    def separate(self, path: str) -> None:
        self._devices.separate(path)

    def device(self, path: str) -> Device:
        return self._devices.at(path)

    def has_handles(self, count: int) -> bool:
        found: list[int] = []
        try:
            for _ in range(count):
                found.append(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        finally:
            for handle in found:
                os.close(handle)
        return len(found) == count

    def close(self, handle: int) -> None:
        if handle in self._locks:
            _locked.discard(self._locks.pop(handle))
        self._by_handle.pop(handle, None)
        self._close(handle)

    def size(self, handle: int) -> int:
        return os.fstat(self._descriptor(handle)).st_size

    async def cold_read(self, handle: int, size: int, offset: int) -> bytes:
        pool = self._pool(self._by_handle[handle])
        return await asyncio.get_running_loop().run_in_executor(pool, self.pread, handle, size, offset)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        began_s = self.now_s()
        written = self._write(handle, buffers, offset)
        ended_s = self.now_s()
        if ended_s - began_s >= SLOW_WRITE_S:
            self._by_handle[handle].took(ended_s - began_s, ended_s, written)
        return written

    def write_soon(self, handle: int, data: bytes, offset: int) -> PendingWrite:
        device = self._by_handle[handle]
        future = self._pool(device).submit(self._timed_write, handle, data, offset)
        return SystemWrite(self, device, len(data), future)

    def _timed_write(self, handle: int, data: bytes, offset: int) -> float:
        began_s = self.now_s()
        self._write(handle, (data,), offset)
        return self.now_s() - began_s

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._native(path))

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(self._native(path))

    def path_size(self, path: str) -> int:
        return os.stat(self._native(path)).st_size

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(self._native(path)))

    def mkdir(self, path: str) -> None:
        native = self._native(path)
        try:
            os.mkdir(native, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(native):
                raise
        except FileNotFoundError:
            os.makedirs(native, DIRECTORY_MODE, exist_ok=True)

    def hide(self, path: str) -> None:
        native = self._native(path)
        mode = stat.S_IMODE(os.stat(native).st_mode)
        if mode & stat.S_IRWXO:
            os.chmod(native, mode & ~stat.S_IRWXO)

    def rmdir(self, path: str) -> None:
        os.rmdir(self._native(path))

    def modified_ms(self, path: str) -> int:
        return os.stat(self._native(path)).st_mtime_ns // 1_000_000

    def free_bytes(self, path: str) -> int:
        return self._space(path)[1]

    def total_bytes(self, path: str) -> int:
        return self._space(path)[0]

    def _space(self, path: str) -> tuple[int, int]:
        """The total and the free bytes of a file system."""
        import shutil  # a broker starts without it

        usage = shutil.disk_usage(self._native(path))
        return usage.total, usage.free

    def lock(self, path: str) -> int:
        # A POSIX lock does not conflict within a process, and closing any handle of the file releases it. So the file
        # must not even be opened twice.
        native = self._native(path)
        if os.path.exists(native) and _identity(os.stat(native)) in _locked:
            raise BlockingIOError(errno.EAGAIN, "locked by another broker of this process", path)
        handle = self.open(path, create=True)
        try:
            lock_file(self._descriptor(handle), path)
        except OSError:
            self.close(handle)
            raise
        identity = self._locks[handle] = _identity(os.fstat(self._descriptor(handle)))
        _locked.add(identity)
        return handle

    async def sync(self, handle: int) -> None:
        pool = self._pool(self._by_handle[handle])
        await asyncio.get_running_loop().run_in_executor(pool, self.sync_blocking, handle)

    async def sync_directory(self, path: str) -> None:
        pool = self._pool(self._devices.at(path))
        await asyncio.get_running_loop().run_in_executor(pool, self.sync_directory_blocking, path)

    def sync_directory_blocking(self, path: str) -> None:
        sync_directory_to_device(self._native(path))

    async def off_loop(self, work: Callable[[], None], path: str = "") -> None:
        device = self._devices.at(path)
        thread = self._ordered.get(device)
        if thread is None:
            thread = self._ordered[device] = ThreadPoolExecutor(1, thread_name_prefix="disk")
        await asyncio.get_running_loop().run_in_executor(thread, work)

    def _pool(self, device: Device) -> ThreadPoolExecutor:
        pool = self._parallel.get(device)
        if pool is None:
            pool = self._parallel[device] = ThreadPoolExecutor(_THREADS, thread_name_prefix="disk-io")
        return pool

    def shutdown(self) -> None:
        """Wait for work in progress and end the threads. The next use starts new ones."""
        for pool in (*self._ordered.values(), *self._parallel.values()):
            pool.shutdown(wait=True)
        self._ordered.clear()
        self._parallel.clear()
