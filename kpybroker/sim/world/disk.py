"""The disk of one simulated process: its World's access to a `Storage`."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from kpybroker.sim.world.loop import Dead, Owner, VirtualLoop
from kpybroker.sim.world.storage import File, Folder, Storage
from kpybroker.world import Buffer
from kpybroker.world.devices import Device, Devices

RECORDS = ".log"
"""The suffix of the files whose writes must not block the loop."""
THREAD_S = 0.0001
"""The time that it takes to pass a write to a thread."""


class Opened(NamedTuple):
    """An open file."""

    file: File
    path: str


class SimWrite:
    """A write on a thread. It takes effect when the device is ready, or when the loop waits for its result."""

    def __init__(self, disk: SimDisk, handle: int, data: bytes, offset: int, stalled_s: float) -> None:
        self._disk = disk
        self._what = handle, data, offset
        self._takes_s = stalled_s + THREAD_S
        self._ends_s = disk.now_s + self._takes_s
        self._has_ended = False
        self._error: OSError | None = None

    def when_done(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(self._takes_s, self._end, callback)

    def _end(self, callback: Callable[[], None]) -> None:
        self._happen()
        callback()

    def _happen(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        try:
            self._disk.write_by_thread(*self._what, self._takes_s, self._ends_s - self._disk.now_s)
        except OSError as error:
            self._error = error

    def result(self) -> None:
        self._happen()
        if self._error is not None:
            raise self._error


class SimDisk:
    """The files of one process. `fuse`: the number of writes after which the process dies in the middle of the next
    one."""

    def __init__(
        self, storage: Storage, loop: VirtualLoop, owner: Owner, number: int, random: Random, wall_ms: Callable[[], int]
    ) -> None:
        self._storage = storage
        self._loop = loop
        self._owner = owner
        self._number = number
        self._random = random
        self._wall_ms = wall_ms
        self._opened: dict[int, Opened] = {}
        self._next_handle = 3
        self.handles_max = -1
        """The most files that may be open; -1 for no limit."""
        self._devices = Devices()
        self._thread_free_at_s: dict[Device, float] = {}
        self.fuse = -1
        self.on_fuse: Callable[[], None] = lambda: None

    # ---- faults

    def _look(self) -> None:
        if not self._owner.alive:
            raise Dead

    def light_fuse(self, changes: int, on_fuse: Callable[[], None]) -> None:
        """Kill the process in the middle of the write that follows `changes` other changes."""
        self.fuse, self.on_fuse = changes, on_fuse

    def put_out_fuse(self) -> None:
        self.fuse = -1

    def leave_handles(self, free: int) -> None:
        """Limit the process to opening `free` more files."""
        self.handles_max = self.handles + free

    def free_handles(self) -> None:
        """Remove the limit on open files."""
        self.handles_max = -1

    def _change(self, path: str, *, by_thread: bool = False) -> None:
        """Called before every write. Raises Dead if the process is dead or its fuse ends, and OSError if the device
        fails; blocks the process if the device stalls."""
        self._look()
        if self.fuse >= 0:
            self.fuse -= 1
            if self.fuse < 0:
                self._owner.die()
                self.on_fuse()
                raise Dead
        storage = self._storage
        if path.startswith(storage.bad_files[0]) and path.endswith(storage.bad_files[1]):
            raise OSError(storage.bad_files[2], "this file stays bad", path)
        if storage.error_odds and path.startswith(storage.errors_below) and self._random.random() < storage.error_odds:
            raise OSError(errno.EIO, "input/output error")
        stalled_s = self._stalled_s(path)
        if stalled_s > 0 and not by_thread:
            self._loop.block(self._owner, stalled_s)
            self.device(path).took(stalled_s, self._loop.time())

    def _stalled_s(self, path: str, now_s: float | None = None) -> float:
        """The time for which a write to this path that begins at `now_s` must wait for the device."""
        storage = self._storage
        slow_s = storage.slow_s if storage.slow_s and path.startswith(storage.slow_below) else 0.0
        return max(self._hangs_for_s(path, now_s), slow_s)

    def _hangs_for_s(self, path: str, now_s: float | None = None) -> float:
        storage = self._storage
        left_s = storage.stalled_until_s - (self._loop.time() if now_s is None else now_s)
        return left_s if left_s > 0 and path.startswith(storage.stalled_below) else 0.0

    def separate(self, path: str) -> None:
        self._devices.separate(path)

    def device(self, path: str) -> Device:
        return self._devices.at(path)

    # ---- files

    def has_handles(self, count: int) -> bool:
        self._look()
        return self.handles_max < 0 or len(self._opened) + count <= self.handles_max

    def _take_handle(self, path: str) -> None:
        if not self.has_handles(1):
            raise OSError(errno.EMFILE, "too many open files", path)

    @property
    def handles(self) -> int:
        """The number of open files."""
        return len(self._opened)

    def open(self, path: str, *, create: bool = False) -> int:
        self._take_handle(path)
        storage = self._storage
        found = storage.find(path)
        if found is None and create:
            parent, _, name = path.rpartition("/")
            folder = storage.folder(parent)
            self._change(path)
            found = File(self._wall_ms())
            folder.put((name, found))
        file = found if isinstance(found, File) else storage.file(path)
        handle = self._next_handle
        self._next_handle += 1
        self._opened[handle] = Opened(file, path)
        return handle

    def close(self, handle: int) -> None:
        if not self._owner.alive:
            return  # an abandoned generator of a dead process calls this
        closed = self._opened.pop(handle)
        if self._storage.locks.get(closed.file) == self._number:
            del self._storage.locks[closed.file]

    def _file(self, handle: int) -> File:
        opened = self._opened.get(handle)
        if opened is None:
            raise OSError(errno.EBADF, f"handle {handle} is not open")
        return opened.file

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self._look()
        return bytes(self._file(handle).content[offset : offset + size])

    def pread_nowait(self, handle: int, size: int, offset: int) -> bytes | bytearray | None:
        self._look()
        if self._storage.cold_odds and self._random.random() < self._storage.cold_odds:
            return None
        return self._file(handle).content[offset : offset + size]

    def give_back(self, found: Buffer) -> None:
        """Does nothing, because every read allocates its own memory."""

    async def cold_read(self, handle: int, size: int, offset: int) -> bytes:
        self._look()
        file = self._file(handle)
        await asyncio.sleep(self._latency_s(self._opened[handle].path))
        self._look()
        return bytes(file.content[offset : offset + size])

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        path = self._opened[handle].path
        is_known = path.endswith(RECORDS) and self._stalled_s(path) > 0 and self.device(path).is_slow
        assert not is_known, f"{path} is on a slow device and written by the loop"
        return self._write(handle, buffers, offset)

    def _write(self, handle: int, buffers: Sequence[Buffer], offset: int, *, by_thread: bool = False) -> int:
        file = self._file(handle)
        self._change(self._opened[handle].path, by_thread=by_thread)
        file.touch(self._wall_ms())
        return self._storage.write(file, list(buffers), offset)

    def write_soon(self, handle: int, data: bytes, offset: int) -> SimWrite:
        self._look()
        return SimWrite(self, handle, data, offset, self._stalled_s(self._opened[handle].path))

    def write_by_thread(self, handle: int, data: bytes, offset: int, took_s: float, left_s: float) -> None:
        """Write on a thread, which takes `took_s`. If the loop needs the result earlier, it blocks for `left_s`. Raises
        OSError."""
        if left_s > 0:
            self._loop.block(self._owner, left_s)
        self.device(self._opened[handle].path).took(took_s, self._loop.time())
        self._write(handle, [data], offset, by_thread=True)

    @property
    def now_s(self) -> float:
        return self._loop.time()

    def size(self, handle: int) -> int:
        self._look()
        return len(self._file(handle).content)

    def truncate(self, handle: int, size: int) -> None:
        file = self._file(handle)
        self._change(self._opened[handle].path)
        file.touch(self._wall_ms())
        self._storage.truncate(file, size)

    # ---- names

    def exists(self, path: str) -> bool:
        self._look()
        return self._storage.find(path) is not None

    def is_directory(self, path: str) -> bool:
        self._look()
        return isinstance(self._storage.find(path), Folder)

    def path_size(self, path: str) -> int:
        self._look()
        return len(self._storage.file(path).content)

    def list(self, path: str) -> list[str]:
        self._look()
        return sorted(self._storage.folder(path).names)

    def mkdir(self, path: str) -> None:
        self._look()
        at = ""
        for part in path.strip("/").split("/"):
            folder, at = self._storage.folder(at), f"{at}/{part}"
            if part not in folder.names:
                self._change(at)
                folder.put((part, Folder()))
        self._storage.folder(path)

    def hide(self, path: str) -> None:
        self._look()

    def rename(self, old: str, new: str) -> None:
        old_parent, _, old_name = old.rpartition("/")
        new_parent, _, new_name = new.rpartition("/")
        folder = self._storage.folder(old_parent)
        assert folder is self._storage.folder(new_parent), "renames stay within a directory"
        node = folder.names.get(old_name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self._change(old)
        self._release(folder.names.get(new_name))
        folder.put((old_name, None), (new_name, node))

    def _release(self, node: File | Folder | None) -> None:
        if isinstance(node, File):
            self._storage.forget(node)

    def unlink(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        file = self._storage.file(path)
        self._change(path)
        self._release(file)
        self._storage.folder(parent).put((name, None))

    def rmdir(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        if self._storage.folder(path).names:
            raise OSError(errno.ENOTEMPTY, "directory not empty", path)
        self._change(path)
        self._storage.folder(parent).put((name, None))

    def modified_ms(self, path: str) -> int:
        self._look()
        return self._storage.file(path).modified_ms

    def free_bytes(self, path: str) -> int:
        self._look()
        return max(self._storage.total_bytes - self._storage.used_bytes, 0)

    def total_bytes(self, path: str) -> int:
        self._look()
        return self._storage.total_bytes

    def lock(self, path: str) -> int:
        handle = self.open(path, create=True)
        file = self._file(handle)
        holder = self._storage.locks.get(file)
        if holder is not None:
            self.close(handle)
            raise BlockingIOError(errno.EAGAIN, "locked by another process", path)
        self._storage.locks[file] = self._number
        return handle

    def let_go(self) -> None:
        """Close all files, as the kernel does when a process has ended."""
        for opened in self._opened.values():
            if self._storage.locks.get(opened.file) == self._number:
                del self._storage.locks[opened.file]
        self._opened.clear()

    # ---- syncing

    def _latency_s(self, path: str, now_s: float | None = None) -> float:
        low, high = self._storage.sync_s
        return self._stalled_s(path, now_s) + low + (high - low) * self._random.random()

    async def _sync(self, node: File | Folder, path: str) -> None:
        self._look()
        mark = node.mark
        await asyncio.sleep(self._latency_s(path))
        while (left_s := self._hangs_for_s(path)) > 0:
            await asyncio.sleep(left_s)  # the disk has begun to hang: the thread waits, but not the loop
            self._look()
        self._change(path, by_thread=True)
        node.reached_disk(mark)

    async def sync(self, handle: int) -> None:
        await self._sync(self._file(handle), self._opened[handle].path)

    async def sync_directory(self, path: str) -> None:
        self._take_handle(path)
        await self._sync(self._storage.folder(path), path)

    def sync_blocking(self, handle: int) -> None:
        file = self._file(handle)
        self._change(self._opened[handle].path)
        file.reached_disk(file.mark)

    def sync_directory_blocking(self, path: str) -> None:
        self._take_handle(path)
        folder = self._storage.folder(path)
        self._change(path)
        folder.reached_disk(folder.mark)

    async def off_loop(self, work: Callable[[], None], path: str = "") -> None:
        """Run work on the thread of a device, in order. Each piece takes time, and then takes effect all at once."""
        self._look()
        device = self.device(path)
        begins = max(self._loop.time(), self._thread_free_at_s.get(device, 0.0))
        free_at_s = self._thread_free_at_s[device] = begins + self._latency_s(path, begins)
        await asyncio.sleep(free_at_s - self._loop.time())
        self._look()
        work()
