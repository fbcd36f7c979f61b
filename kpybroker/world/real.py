"""The World of the operating system: asyncio sockets, POSIX files, the wall clock."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import secrets
import socket
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from time import monotonic

from kpybroker.world import Buffer, PendingWrite, World
from kpybroker.world.buffers import ReadBuffer, ReadBuffers
from kpybroker.world.devices import SLOW_WRITE_S, Device, Devices
from kpybroker.world.expiry_clock import ExpiryClock
from kpybroker.world.handshakes import Handshakes
from kpybroker.world.secure import HANDSHAKE_S, TlsAcceptor, TlsContext
from kpybroker.world.tls_stream import TlsStream

_IOV_MAX = 1024
_BACKLOG = 1024
FILE_MODE, DIRECTORY_MODE = 0o640, 0o750
"""Other users of the machine may not read the files, because they contain records, keys of users and settings."""
_ACCEPTED_A_TURN = 32
"""asyncio accepts as many connections at once as its backlog allows. With 1024, other work would have to wait."""
_THREADS = 16
"""The most reads, writes and syncs that run at the same time on one device."""
LARGE_READ_BYTES = 32 << 10
"""Reads of this size or more reuse memory."""
_READ_CHUNK_BYTES = 1 << 30  # Linux moves at most 2 GiB - 4 KiB in one call
FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""F_FULLFSYNC of macOS, which also flushes the device's cache. fsync does not do this on macOS (fcntl(2))."""
_FULL_SYNC_UNKNOWN = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL})
_SYNC: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
_RWF_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_NOWAIT_UNKNOWN = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


_locked: dict[int, tuple[int, int]] = {}
"""The handle and the identity of each file that this process has locked."""


def sync_to_device(handle: int, sync: Callable[[int], None] = _SYNC) -> None:
    """Sync a file: its data, and the metadata that is needed to read it, are then on the device.

    Directories need `os.fsync`, because file systems need not support fdatasync for them.
    """
    if FULL_SYNC is not None:
        try:
            fcntl.fcntl(handle, FULL_SYNC)
            return
        except OSError as error:
            # the kernel reports a failed write only once, so a second sync would succeed
            if error.errno not in _FULL_SYNC_UNKNOWN:
                raise
    sync(handle)


def _identity(of: os.stat_result) -> tuple[int, int]:
    return of.st_dev, of.st_ino


class RealListener:
    """A listening socket, or one for each address of its host, all on the same port."""

    def __init__(self, servers: Sequence[asyncio.Server], port: int, handshakes: Handshakes | None) -> None:
        self._servers = servers
        self._port = port
        self._handshakes = handshakes

    @property
    def port(self) -> int:
        return self._port

    def close(self) -> None:
        for server in self._servers:
            server.close()
        if self._handshakes is not None:
            self._handshakes.close()


def _bound_socket(family: int, address: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # otherwise, "::" would also bind the port of "0.0.0.0", which may be the next address of the same host
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(address)
    except OSError:
        listening.close()
        raise
    return listening


class RealNetwork:
    """TCP with the running event loop, which sets TCP_NODELAY on every stream."""

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: TlsAcceptor | None = None
    ) -> RealListener:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # IPv4 first, because with port 0 the port of the first address is used for all
        addresses = sorted({(family, address) for family, _, _, _, address in found})
        sockets: list[socket.socket] = []
        servers: list[asyncio.Server] = []
        handshakes = None if tls is None else Handshakes(tls)
        accepting = factory if handshakes is None else lambda: TlsStream(factory, handshakes)
        try:
            for family, address in addresses:
                sockets.append(_bound_socket(family, (address[0], port, *address[2:])))
                port = sockets[0].getsockname()[1]
            for listening in sockets:
                servers.append(await loop.create_server(accepting, sock=listening, backlog=_ACCEPTED_A_TURN))
                listening.listen(_BACKLOG)
        except OSError:
            for server in servers:
                server.close()
            for listening in sockets:
                listening.close()
            raise
        return RealListener(servers, port, handshakes)

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: TlsContext | None = None
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await asyncio.get_running_loop().create_connection(
            factory, host, port, ssl=tls, ssl_handshake_timeout=None if tls is None else HANDSHAKE_S
        )


class RealWrite:
    """A write on a thread. Its duration is measured."""

    def __init__(self, disk: RealDisk, device: Device, size_bytes: int, future: Future[float]) -> None:
        self._disk = disk
        self._device = device
        self._size_bytes = size_bytes
        self._future = future

    def when_done(self, callback: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._future.add_done_callback(lambda _: loop.call_soon_threadsafe(callback))

    def result(self) -> None:
        self._device.took(self._future.result(), self._disk.now_s(), self._size_bytes)


class RealDisk:
    """Files through the module os. Calls that may wait for a device run on the device's threads, which are started at
    first use."""

    def __init__(self, *, syncs: bool = True) -> None:
        """`syncs`: whether data is written to the device, so that it survives a loss of power."""
        self._syncs = syncs
        self._ordered: dict[Device, ThreadPoolExecutor] = {}
        self._parallel: dict[Device, ThreadPoolExecutor] = {}
        self._devices = Devices()
        self._by_handle: dict[int, Device] = {}
        """The devices of open files."""
        self.now_s = monotonic
        """The clock that times the writes."""
        self._nowait = _RWF_NOWAIT
        self._buffers = ReadBuffers()

    def separate(self, path: str) -> None:
        self._devices.separate(path)

    def device(self, path: str) -> Device:
        return self._devices.at(path)

    def open(self, path: str, *, create: bool = False) -> int:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), FILE_MODE)
        self._by_handle[handle] = self._devices.at(path)
        return handle

    def close(self, handle: int) -> None:
        _locked.pop(handle, None)
        self._by_handle.pop(handle, None)
        os.close(handle)

    def has_handles(self, count: int) -> bool:
        found: list[int] = []
        try:
            for _ in range(count):
                found.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        finally:
            for handle in found:
                os.close(handle)
        return len(found) == count

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
        return RealWrite(self, device, len(data), future)

    def _timed_write(self, handle: int, data: bytes, offset: int) -> float:
        began_s = self.now_s()
        self._write(handle, (data,), offset)
        return self.now_s() - began_s

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

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def path_size(self, path: str) -> int:
        return os.stat(path).st_size

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def mkdir(self, path: str) -> None:
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
        except FileNotFoundError:
            os.makedirs(path, DIRECTORY_MODE, exist_ok=True)

    def hide(self, path: str) -> None:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & stat.S_IRWXO:
            os.chmod(path, mode & ~stat.S_IRWXO)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def total_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize

    def lock(self, path: str) -> int:
        # A POSIX lock, which Java's FileLock respects, does not conflict within a process, and closing any handle of
        # the file releases it. So the file must not even be opened twice.
        if os.path.exists(path) and _identity(os.stat(path)) in _locked.values():
            raise BlockingIOError(errno.EAGAIN, "locked by another broker of this process", path)
        handle = self.open(path, create=True)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close(handle)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise BlockingIOError(error.errno, "locked by another process", path) from error
            raise
        _locked[handle] = _identity(os.fstat(handle))
        return handle

    async def sync(self, handle: int) -> None:
        if not self._syncs:
            return
        pool = self._pool(self._by_handle[handle])
        await asyncio.get_running_loop().run_in_executor(pool, sync_to_device, handle)

    async def sync_directory(self, path: str) -> None:
        if not self._syncs:
            return
        pool = self._pool(self._devices.at(path))
        await asyncio.get_running_loop().run_in_executor(pool, self.sync_directory_blocking, path)

    def sync_blocking(self, handle: int) -> None:
        if self._syncs:
            sync_to_device(handle)

    def sync_directory_blocking(self, path: str) -> None:
        if not self._syncs:
            return
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_to_device(handle, os.fsync)
        finally:
            os.close(handle)

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


class RealWorld:
    """The operating system's clock, random numbers, network and disk."""

    def __init__(self, seed: int | None = None, clock_ahead_ms: int = 0, *, syncs: bool = True) -> None:
        self.expiry = ExpiryClock(self.steady_ms, clock_ahead_ms)
        self.random = Random(seed)
        self.network = RealNetwork()
        self.disk = RealDisk(syncs=syncs)

    def secret_bytes(self, size: int) -> bytes:
        return secrets.token_bytes(size)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.expiry.ahead_ms

    def steady_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def close(self) -> None:
        self.disk.shutdown()


def real_world(clock_ahead_ms: int = 0, *, syncs: bool = True) -> World:
    """A World of this machine. Its type lets mypy check it against the protocol.

    `clock_ahead_ms`: the time by which a test has advanced the clock of an earlier process of this node. `syncs`:
    whether data is to survive a loss of power, and not only the end of the process.
    """
    return RealWorld(clock_ahead_ms=clock_ahead_ms, syncs=syncs)
