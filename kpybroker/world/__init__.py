"""The interface through which a broker accesses the outside: clock, random numbers, network and disk.

Everything below `server` accesses the operating system only through a `World`. `world.real` has the real World; the
simulator has its own. Monotonic time is that of the event loop (`asyncio.get_running_loop().time()`) and needs no
World.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Protocol

from kpybroker.world.devices import Device
from kpybroker.world.expiry_clock import ExpiryClock

if TYPE_CHECKING:
    from kpybroker.world.secure import TlsAcceptor, TlsContext

Buffer = bytes | bytearray | memoryview


class Listener(Protocol):
    """A listening socket."""

    @property
    def port(self) -> int: ...

    def close(self) -> None:
        """Stop accepting connections. Accepted connections stay open."""


class Network(Protocol):
    """TCP with asyncio's interfaces: protocol factories and transports."""

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: TlsAcceptor | None = None
    ) -> Listener:
        """Listen on a host and port; port 0 picks a free one. With `tls`, the protocol's connection is made after the
        handshake. Raises OSError (address in use, not available)."""

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: TlsContext | None = None
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect to a host and port. With `tls`, the protocol's connection is made after the handshake. Raises OSError
        (refused, unreachable, a failed handshake)."""

    def host_name(self) -> str:
        """The canonical name of this machine. May wait for the resolver."""


class PendingWrite(Protocol):
    """A write that a thread executes."""

    def when_done(self, callback: Callable[[], None]) -> None:
        """Set a function that is called on the loop when the write has ended."""

    def result(self) -> None:
        """Block the caller until the write has ended. Raises OSError if it failed."""


class Disk(Protocol):
    """Files and directories. Paths are absolute strings; handles are ints; every failure is an OSError.

    Calls without `async` may block only for the page cache, except where a docstring says otherwise.
    """

    def open(self, path: str, *, create: bool = False) -> int:
        """Open for reading and writing. `create`: create the file if it does not exist; its content is kept."""

    def close(self, handle: int) -> None: ...

    def has_handles(self, count: int) -> bool:
        """Whether this process may open this number of additional files now."""

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        """Read `size` bytes, or fewer at the end of the file. May wait for the disk, so it is only for startup and
        recovery."""

    def pread_nowait(self, handle: int, size: int, offset: int) -> Buffer | None:
        """Like pread, but returns None if the read would wait for the disk (RWF_NOWAIT, where the system has it). The
        result may be a view of memory that can be given back."""

    def give_back(self, found: Buffer) -> None:
        """Return the memory of a `pread_nowait` that is no longer used, so that the next read may reuse it."""

    async def cold_read(self, handle: int, size: int, offset: int) -> bytes:
        """Like pread, on a thread."""

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write all buffers at an offset. Returns the number of bytes. Short writes are completed."""

    def write_soon(self, handle: int, data: bytes, offset: int) -> PendingWrite:
        """Like pwritev, on a thread of the file's device."""

    def separate(self, path: str) -> None:
        """Give the files below `path` separate threads, so that waiting for their device does not delay other files."""

    def device(self, path: str) -> Device:
        """The state of the device of `path`."""

    def size(self, handle: int) -> int: ...

    def truncate(self, handle: int, size: int) -> None: ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def path_size(self, path: str) -> int:
        """The size of a file that is not open."""

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def mkdir(self, path: str) -> None:
        """Create a directory and its parents, unless they exist. Only the owner and the group may read it and the files
        created in it."""

    def hide(self, path: str) -> None:
        """Remove all rights of users other than the owner and the group. Raises OSError."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file. An existing file of the new name is replaced atomically."""

    def unlink(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def modified_ms(self, path: str) -> int: ...

    def free_bytes(self, path: str) -> int:
        """The number of bytes that may still be written to the file system of `path`."""

    def total_bytes(self, path: str) -> int:
        """The size of the file system of `path`."""

    def lock(self, path: str) -> int:
        """Take an exclusive lock on a file, which is created if needed. Raises BlockingIOError if another process has
        the lock."""

    async def sync(self, handle: int) -> None:
        """fdatasync on a thread, or F_FULLFSYNC on macOS."""

    async def sync_directory(self, path: str) -> None:
        """fsync of a directory on a thread."""

    def sync_blocking(self, handle: int) -> None:
        """fdatasync on the calling thread, only for startup and stop."""

    def sync_directory_blocking(self, path: str) -> None:
        """fsync of a directory on the calling thread, only for startup and stop."""

    async def off_loop(self, work: Callable[[], None], path: str = "") -> None:
        """Run work on files below `path` (unlinking or truncating many of them) in order, on a thread that its device
        has only for this."""


class World(Protocol):
    """All access to the outside that a broker may use."""

    @property
    def random(self) -> Random: ...

    @property
    def network(self) -> Network: ...

    @property
    def disk(self) -> Disk: ...

    @property
    def expiry(self) -> ExpiryClock:
        """The clock by which sessions, transactions, locks and offsets expire."""

    def secret_bytes(self, size: int) -> bytes:
        """Unpredictable bytes, for keys and nonces."""

    def wall_ms(self) -> int:
        """The time by the wall clock in milliseconds since the epoch, for times that are stored or sent. It may jump
        backward or forward, and is advanced together with `expiry`."""

    def steady_ms(self) -> int:
        """The time by the event loop's clock in milliseconds, for timeouts and intervals. It never goes backward, does
        not advance while the machine is suspended, and cannot be compared with times of another process."""
