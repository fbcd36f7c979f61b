"""Files of a system with neither preadv nor pwritev that refuses to rename or delete open files, such as Windows.

The rest of the broker may rename and delete open files. So a handle is not a descriptor here: before a file is renamed,
it is closed, and the next use of its handle opens it under its new name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from threading import Lock

from kpybroker.world import Buffer
from kpybroker.world.syncing import sync_to_device
from kpybroker.world.system_disk import FILE_MODE, SystemDisk

_BINARY: int = getattr(os, "O_BINARY", 0)
"""Without this flag, Windows converts the ends of lines."""
_CHUNK_BYTES = 1 << 30


class _OpenFile:
    """A file that the broker has open. `lock` protects the position of the descriptor, which is -1 while the file is
    closed for a rename."""

    __slots__ = ("descriptor", "is_deleted", "lock", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.is_deleted = False
        self.lock = Lock()

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def delete(self) -> None:
        """Note that the name of the file is deleted, or belongs to another file."""
        self.close()
        self.is_deleted = True

    def moved(self, path: str) -> None:
        self.path = path

    def opened(self, open_at: Callable[[str], int]) -> int:
        """The descriptor, which is opened if necessary. Raises OSError; its `errno` is EBADF for a deleted file."""
        if self.descriptor < 0:
            if self.is_deleted:
                raise OSError(errno.EBADF, "the file was deleted while it was open", self.path)
            self.descriptor = open_at(self.path)
        return self.descriptor


class PortableDisk(SystemDisk):
    """Files that are closed while they are renamed or deleted. A deleted file cannot be read any more. Reads may wait
    for the disk, because the system cannot be asked to refuse that."""

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[int, _OpenFile] = {}
        self._handles = count(1)
        self._one_rename = Lock()
        """Held by a thread that has the locks of several files."""

    # what a system does in its own way

    def _rename(self, old: str, new: str) -> None:
        native = self._native(old)
        # os.replace asks Windows to replace an existing file, which it does not offer for directories
        (os.rename if os.path.isdir(native) else os.replace)(native, self._native(new))

    def _unlink(self, path: str) -> None:
        os.unlink(self._native(path))

    # files

    def _open_at(self, path: str, flags: int = 0) -> int:
        return os.open(self._native(path), os.O_RDWR | _BINARY | flags, FILE_MODE)

    def open(self, path: str, *, create: bool = False) -> int:
        file, handle = _OpenFile(path, self._open_at(path, os.O_CREAT if create else 0)), next(self._handles)
        self._files[handle] = file
        self._by_handle[handle] = self._devices.at(path)
        return handle

    def _close(self, handle: int) -> None:
        file = self._files.pop(handle)
        with file.lock:
            file.close()

    def _file(self, handle: int) -> _OpenFile:
        file = self._files.get(handle)
        if file is None:
            raise OSError(errno.EBADF, f"handle {handle} is not open")
        return file

    def _descriptor(self, handle: int) -> int:
        file = self._file(handle)
        with file.lock:
            return file.opened(self._open_at)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        file = self._file(handle)
        parts: list[bytes] = []
        with file.lock:
            descriptor = file.opened(self._open_at)
            os.lseek(descriptor, offset, os.SEEK_SET)
            while size > 0 and (more := os.read(descriptor, min(size, _CHUNK_BYTES))):
                parts.append(more)
                size -= len(more)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pread_nowait(self, handle: int, size: int, offset: int) -> Buffer | None:
        return self.pread(handle, size, offset)

    def give_back(self, found: Buffer) -> None:
        """Does nothing, because every read allocates its own memory."""

    def _write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        file = self._file(handle)
        rest = memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        size = len(rest)
        with file.lock:
            descriptor = file.opened(self._open_at)
            os.lseek(descriptor, offset, os.SEEK_SET)
            while rest:
                rest = rest[os.write(descriptor, rest[:_CHUNK_BYTES]) :]
        return size

    def truncate(self, handle: int, size: int) -> None:
        file = self._file(handle)
        with file.lock:
            os.ftruncate(file.opened(self._open_at), size)

    def sync_blocking(self, handle: int) -> None:
        file = self._file(handle)
        with file.lock:
            sync_to_device(file.opened(self._open_at))

    # names

    def _at(self, path: str) -> list[_OpenFile]:
        """The open files with this name or below it."""
        return [file for file in list(self._files.values()) if file.path == path or file.path.startswith(f"{path}/")]

    def rename(self, old: str, new: str) -> None:
        with self._one_rename, ExitStack() as locks:
            moved, replaced = self._at(old), self._at(new)
            for file in (*moved, *replaced):
                locks.enter_context(file.lock)
                file.close()
            self._rename(old, new)
            for file in moved:
                file.moved(new + file.path[len(old) :])
            for file in replaced:
                file.delete()

    def unlink(self, path: str) -> None:
        with self._one_rename, ExitStack() as locks:
            found = self._at(path)
            for file in found:
                locks.enter_context(file.lock)
                file.close()
            self._unlink(path)
            for file in found:
                file.delete()
