"""The content of a simulated disk: files, directories, and the changes that a power loss may undo.

Each change keeps its undo information until it is synced. A change of a file is synced with the file, and a change of a
name with its directory. A power loss undoes a random number of the last changes of each file and directory, and may
undo part of a write.
"""

from __future__ import annotations

import errno
from collections import deque
from random import Random
from typing import NamedTuple

from kpybroker.world import Buffer

TOTAL_BYTES = 1 << 30
ZEROS_ODDS = 0.25
NO_FILES = ("/no file", "", errno.EIO)
"""Matches no path."""


class Change(NamedTuple):
    """The undo information of a change of a file: the old bytes at `at`, the number of bytes written there, and the old
    file size."""

    at: int
    old: bytes
    written: int
    size_before: int


class File:
    """An inode with bytes."""

    __slots__ = ("changes", "content", "forgotten", "modified_ms")

    def __init__(self, now_ms: int) -> None:
        self.content = bytearray()
        self.changes: deque[Change] = deque()
        self.forgotten = 0
        """The number of changes that have reached the disk."""
        self.modified_ms = now_ms

    @property
    def mark(self) -> int:
        """The number of changes so far. A sync that begins now makes these durable."""
        return self.forgotten + len(self.changes)

    def reached_disk(self, mark: int) -> None:
        while self.forgotten < mark:
            self.changes.popleft()
            self.forgotten += 1

    def touch(self, now_ms: int) -> None:
        self.modified_ms = now_ms

    def write(self, data: bytes, at: int) -> None:
        content, size = self.content, len(self.content)
        self.changes.append(Change(at, bytes(content[at : at + len(data)]), len(data), size))
        if at > size:
            content.extend(bytes(at - size))
        content[at : at + len(data)] = data

    def truncate(self, size: int) -> None:
        content, before = self.content, len(self.content)
        if size == before:
            return
        self.changes.append(Change(size, bytes(content[size:]), 0, before))
        if size < before:
            del content[size:]
        else:
            content.extend(bytes(size - before))

    def lose_power(self, random: Random) -> int:
        """Keep the synced bytes and a random prefix of the other changes. Returns the number of lost changes.

        Sometimes the new length of the file reached the disk before the bytes: the missing part of a write is zeros.
        """
        count = len(self.changes)
        if not count:
            return 0
        kept = random.choice((0, random.randint(0, count), count))
        torn, missing = b"", 0
        for number in range(count - 1, kept - 1, -1):
            change = self.changes[number]
            if number == kept and change.written:
                torn = bytes(self.content[change.at : change.at + random.randint(0, change.written)])
                missing = change.written - len(torn) if random.random() < ZEROS_ODDS else 0
            self._take_back(change)
        if torn or missing:
            self.write(torn + bytes(missing), self.changes[kept].at)
        self.changes.clear()
        return count - kept

    def _take_back(self, change: Change) -> None:
        self.content[change.at : change.at + len(change.old)] = change.old
        del self.content[change.size_before :]

    def copy(self) -> File:
        other = File(self.modified_ms)
        other.content = bytearray(self.content)
        return other


class Folder:
    """An inode with names. A rename is one change, within one directory."""

    __slots__ = ("changes", "forgotten", "names")

    def __init__(self) -> None:
        self.names: dict[str, File | Folder] = {}
        self.changes: deque[list[tuple[str, File | Folder | None]]] = deque()
        self.forgotten = 0

    @property
    def mark(self) -> int:
        return self.forgotten + len(self.changes)

    def reached_disk(self, mark: int) -> None:
        while self.forgotten < mark:
            self.changes.popleft()
            self.forgotten += 1

    def put(self, *names: tuple[str, File | Folder | None]) -> None:
        """Change several names atomically. None removes a name."""
        self.changes.append([(name, self.names.get(name)) for name, _ in names])
        self._set(list(names))

    def _set(self, names: list[tuple[str, File | Folder | None]]) -> None:
        for name, node in names:
            if node is None:
                self.names.pop(name, None)
            else:
                self.names[name] = node

    def lose_power(self, random: Random) -> int:
        """Undo a random number of changes of names here, and of all changes below. Returns the number of lost
        changes."""
        count = len(self.changes)
        kept = random.choice((0, random.randint(0, count), count)) if count else 0
        for number in range(count - 1, kept - 1, -1):
            self._set(self.changes[number])
        self.changes.clear()
        return count - kept + sum(self.names[name].lose_power(random) for name in sorted(self.names))

    def copy(self) -> Folder:
        other = Folder()
        other.names = {name: node.copy() for name, node in self.names.items()}
        return other

    def size_bytes(self) -> int:
        return sum(len(one.content) if isinstance(one, File) else one.size_bytes() for one in self.names.values())


class Storage:
    """One disk and its current faults."""

    def __init__(self) -> None:
        self.root = Folder()
        self.total_bytes = TOTAL_BYTES
        self.used_bytes = 0
        self.locks: dict[File, int] = {}
        """Locked files, and the number of the process that holds each lock."""
        self.error_odds = 0.0
        """The probability that a write or a sync fails with EIO."""
        self.errors_below = ""
        """The directory in which `error_odds` applies."""
        self.bad_files = NO_FILES
        """(prefix, suffix, errno) of paths of files that cannot be created or changed."""
        self.cold_odds = 0.0
        """The probability that a read must wait for the device."""
        self.stalled_until_s = 0.0
        """The time until which no sync completes and writes block."""
        self.stalled_below = ""
        """The directory in which `stalled_until_s` applies."""
        self.slow_below = ""
        self.slow_s = 0.0
        """The duration of each write below `slow_below`."""
        self.sync_s = (0.0005, 0.004)
        """The shortest and the longest duration of a sync."""

    def leave_free(self, size_bytes: int) -> None:
        """Leave only `size_bytes` free on the disk."""
        self.total_bytes = self.used_bytes + size_bytes

    def fail(self, odds: float, below: str = "") -> None:
        """Make writes and syncs fail with EIO with this probability, in one directory or in all directories."""
        self.error_odds, self.errors_below = odds, below

    def spoil(self, prefix: str, suffix: str, error: int) -> None:
        """Prevent files with this path prefix and suffix from being created or changed."""
        self.bad_files = (prefix, suffix, error)

    def stall(self, until_s: float, below: str | None = None) -> None:
        """Let no sync in this directory complete before `until_s`; by default, in the directory of the last stall."""
        self.stalled_until_s = until_s
        if below is not None:
            self.stalled_below = below

    def slow_writes(self, seconds: float, below: str) -> None:
        """Make every write in this directory take `seconds`."""
        self.slow_s, self.slow_below = seconds, below

    def set_pace(self, cold_odds: float, sync_s: tuple[float, float]) -> None:
        """Set the probability that a read waits for the device, and the shortest and the longest duration of a sync."""
        self.cold_odds, self.sync_s = cold_odds, sync_s

    def warm(self) -> None:
        """Serve every read from memory from now on."""
        self.cold_odds = 0.0

    def forget(self, file: File) -> None:
        """Free the bytes of a removed file."""
        self.used_bytes -= len(file.content)

    def mend(self) -> None:
        """Remove all faults."""
        self.total_bytes = TOTAL_BYTES
        self.error_odds = 0.0
        self.errors_below = ""
        self.bad_files = NO_FILES
        self.stalled_until_s = self.slow_s = 0.0
        self.stalled_below = self.slow_below = ""

    def lose_power(self, random: Random) -> int:
        """Lose a random part of the changes that were not synced. Returns the number of lost changes."""
        lost = self.root.lose_power(random)
        self.locks.clear()
        self.used_bytes = self.root.size_bytes()
        return lost

    def lose_everything(self) -> None:
        """Replace the disk by an empty one."""
        self.root = Folder()
        self.locks.clear()
        self.used_bytes = 0

    def copy(self) -> Storage:
        """Return a disk with the same content, all of which is durable, and without faults."""
        other = Storage()
        other.root = self.root.copy()
        other.used_bytes = self.used_bytes
        return other

    def find(self, path: str) -> File | Folder | None:
        node: File | Folder | None = self.root
        for part in path.split("/"):
            if part:
                if not isinstance(node, Folder):
                    return None
                node = node.names.get(part)
        return node

    def folder(self, path: str) -> Folder:
        """The directory at a path. Raises FileNotFoundError, NotADirectoryError."""
        found = self.find(path)
        if isinstance(found, Folder):
            return found
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)

    def file(self, path: str) -> File:
        """The file at a path. Raises FileNotFoundError, IsADirectoryError."""
        found = self.find(path)
        if isinstance(found, File):
            return found
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        raise IsADirectoryError(errno.EISDIR, "is a directory", path)

    def write(self, file: File, buffers: list[Buffer], at: int) -> int:
        """Write as many bytes as the free space allows. Raises OSError (disk full) if these are not all bytes."""
        data = b"".join(buffers)
        grows = max(at + len(data) - len(file.content), 0)
        room = max(self.total_bytes - self.used_bytes, 0)
        fits = data if grows <= room else data[: len(data) - (grows - room)]
        before = len(file.content)
        if fits:
            file.write(fits, at)
        self.used_bytes += len(file.content) - before
        if len(fits) < len(data):
            raise OSError(errno.ENOSPC, "no space left on device")
        return len(data)

    def truncate(self, file: File, size: int) -> None:
        before = len(file.content)
        file.truncate(size)
        self.used_bytes += size - before
