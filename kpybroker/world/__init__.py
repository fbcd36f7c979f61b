"""The four doors to the outside: clock, chance, network, disk.

Everything below `server` reaches the operating system only through a `World`; `world.real` is the real one, the
simulator is another. Monotonic time is the event loop's own (`asyncio.get_running_loop().time()`), so it has no door.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from kpybroker.world.devices import Device

Buffer = bytes | bytearray | memoryview


class Listener(Protocol):
    """A listening socket."""

    @property
    def port(self) -> int: ...

    def close(self) -> None:
        """Stop accepting; connections already accepted stay."""


class Network(Protocol):
    """TCP as asyncio sees it: protocol factories and transports."""

    async def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Listener:
        """Listen; port 0 picks a free one. Raises OSError (address in use, not available)."""

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Dial. Raises OSError (refused, unreachable)."""


class PendingWrite(Protocol):
    """A write that a thread has been given."""

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back on the loop once it has ended."""

    def result(self) -> None:
        """Wait for its end on the caller. Raises OSError where it failed."""


class Disk(Protocol):
    """Files and directories. Paths are absolute strings; handles are ints; every failure is an OSError.

    Calls without `async` may block only for the page cache, except where a docstring says otherwise.
    """

    def open(self, path: str, *, create: bool = False) -> int:
        """Open for reading and writing; `create` makes the file when absent (it is never cut)."""

    def close(self, handle: int) -> None: ...

    def has_handles(self, count: int) -> bool:
        """Whether this process may open so many more files now."""

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file. May wait for the disk: start-up and recovery only."""

    def pread_nowait(self, handle: int, size: int, offset: int) -> Buffer | None:
        """Like pread, but None where the read would wait for the disk (RWF_NOWAIT where the system has it).

        What is found may be a view of memory that can be given back.
        """

    def give_back(self, found: Buffer) -> None:
        """Nobody looks any more at what `pread_nowait` found: its memory may serve the next read."""

    async def cold_read(self, handle: int, size: int, offset: int) -> bytes:
        """Like pread, off the loop."""

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write all buffers at offset; returns the bytes written. Short writes are completed inside."""

    def write_soon(self, handle: int, data: bytes, offset: int) -> PendingWrite:
        """Like pwritev, on a thread of the file's device."""

    def separate(self, path: str) -> None:
        """What waits for the device below `path` holds up nothing elsewhere: it has threads of its own."""

    def device(self, path: str) -> Device:
        """What is known of the device that `path` is on."""

    def size(self, handle: int) -> int: ...

    def truncate(self, handle: int, size: int) -> None: ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def path_size(self, path: str) -> int:
        """Size of a file that is not open."""

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents; no error when it is there."""

    def rename(self, old: str, new: str) -> None:
        """Atomic replace."""

    def unlink(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def modified_ms(self, path: str) -> int: ...

    def free_bytes(self, path: str) -> int:
        """Bytes that may still be written to the file system of `path`."""

    def total_bytes(self, path: str) -> int:
        """Size of the file system of `path`."""

    def lock(self, path: str) -> int:
        """Take an exclusive lock on a file, made when absent; BlockingIOError when another process has it."""

    async def sync(self, handle: int) -> None:
        """fdatasync, off the loop; on macOS F_FULLFSYNC."""

    async def sync_directory(self, path: str) -> None:
        """fsync of a directory, off the loop."""

    def sync_blocking(self, handle: int) -> None:
        """fdatasync on the caller: start-up and stop only."""

    def sync_directory_blocking(self, path: str) -> None:
        """fsync of a directory on the caller: start-up and stop only."""

    async def off_loop(self, work: Callable[[], None], path: str = "") -> None:
        """Run disk work below `path` (unlink, truncate of many files) on its device's one thread for it, in order."""


class World(Protocol):
    """What a broker may know of the outside."""

    @property
    def random(self) -> Random: ...

    @property
    def network(self) -> Network: ...

    @property
    def disk(self) -> Disk: ...

    def wall_ms(self) -> int:
        """Wall clock, milliseconds since the epoch: for what is stored or told. It may be set back or forward."""

    def steady_ms(self) -> int:
        """The event loop's clock in milliseconds: for time-outs and intervals. It only goes forward, stands still while
        the machine is suspended, and says nothing to another process."""
