"""Files on Linux and macOS: a handle is a file descriptor, and preadv and pwritev read and write at an offset."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from kpybroker.world import Buffer
from kpybroker.world.buffers import ReadBuffer, ReadBuffers
from kpybroker.world.syncing import sync_to_device
from kpybroker.world.system_disk import FILE_MODE, SystemDisk

assert sys.platform != "win32", "Windows lacks preadv and pwritev: use PortableDisk"

_IOV_MAX = 1024
LARGE_READ_BYTES = 32 << 10
"""Reads of this size or more reuse memory."""
_READ_CHUNK_BYTES = 1 << 30  # Linux moves at most 2 GiB - 4 KiB in one call
_RWF_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_NOWAIT_UNKNOWN = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class PosixDisk(SystemDisk):
    """Files that can be renamed and deleted while they are open."""

    def __init__(self) -> None:
        super().__init__()
        self._nowait = _RWF_NOWAIT
        self._buffers = ReadBuffers()

    def open(self, path: str, *, create: bool = False) -> int:
        handle = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), FILE_MODE)
        self._by_handle[handle] = self._devices.at(path)
        return handle

    def _close(self, handle: int) -> None:
        os.close(handle)

    def _descriptor(self, handle: int) -> int:
        return handle

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        found = os.pread(handle, min(size, _READ_CHUNK_BYTES), offset)
        if len(found) == size or not found:
            return found
        parts = [found]
        done = len(found)
        while done < size and (more := os.pread(handle, min(size - done, _READ_CHUNK_BYTES), offset + done)):
            parts.append(more)
            done += len(more)
        return b"".join(parts)

    def pread_nowait(self, handle: int, size: int, offset: int) -> Buffer | None:
        flag = self._nowait
        if flag is None:
            return os.pread(handle, size, offset)
        found = memoryview(bytearray(size)) if size < LARGE_READ_BYTES else self._buffers.take(size)
        try:
            done = os.preadv(handle, (found,), offset, flag)
            # a short read: the end of the file, or the rest is not in the page cache
            while done < size and (more := os.preadv(handle, (found[done:],), offset + done, flag)):
                done += more
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NOWAIT_UNKNOWN:
                raise
            self._nowait = None  # this file system does not support it, so a read may wait for its disk
            return os.pread(handle, size, offset)
        return found if done == size else found[:done]

    def give_back(self, found: Buffer) -> None:
        if isinstance(found, memoryview) and isinstance(found.obj, ReadBuffer):
            self._buffers.give_back(found.obj)

    def _write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        if len(buffers) == 1:
            size = len(buffers[0])
            done = os.pwrite(handle, buffers[0], offset)
            return size if done == size else done + self._write_rest(handle, buffers[0], done, offset)
        written = 0
        for first in range(0, len(buffers), _IOV_MAX):
            some = buffers[first : first + _IOV_MAX]
            size = sum(map(len, some))
            done = os.pwritev(handle, some, offset + written)
            if done != size:
                done += self._write_rest(handle, b"".join(some), done, offset + written)
            written += size
        return written

    def _write_rest(self, handle: int, buffer: Buffer, done: int, offset: int) -> int:
        """Complete a short write. After an error (disk full), the bytes that were already written stay."""
        rest = memoryview(buffer)[done:]
        left = len(rest)
        while rest:
            count = os.pwrite(handle, rest, offset + done)
            done += count
            rest = rest[count:]
        return left

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_blocking(self, handle: int) -> None:
        sync_to_device(handle)
