"""Tests that the real World fulfils its interface."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kpybroker.world import World, syncing
from kpybroker.world.real import RealDisk, RealWorld, real_world
from kpybroker.world.syncing import sync_to_device
from kpybroker.world.system_disk import SystemDisk
from tests.storage.strict_disk import StrictDisk

DISKS = [RealDisk, StrictDisk]


def test_it_is_a_world() -> None:
    world: World = real_world()
    assert world.wall_ms() > 1_700_000_000_000
    assert RealWorld(5).random.random() == RealWorld(5).random.random()


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest) -> Iterator[SystemDisk]:
    found: SystemDisk = request.param()
    yield found
    found.shutdown()


def test_buffers_are_written_in_one_call(tmp_path: Path, disk: SystemDisk) -> None:
    handle = disk.open(str(tmp_path / "f"), create=True)
    parts = [bytes([at % 251]) * (at % 7) for at in range(3000)]
    assert disk.pwritev(handle, parts, 5) == sum(map(len, parts))
    assert disk.pwritev(handle, [memoryview(b"abc")], 0) == 3
    content = disk.pread(handle, 1 << 20, 0)
    assert content == b"abc\0\0" + b"".join(parts) == (tmp_path / "f").read_bytes()
    assert disk.size(handle) == len(content) == disk.path_size(str(tmp_path / "f"))
    disk.truncate(handle, 3)
    assert disk.pread_nowait(handle, 10, 0) == b"abc"
    assert disk.pread_nowait(handle, 2, 1) == b"bc"
    assert disk.pread_nowait(handle, 10, 3) == b""
    assert asyncio.run(disk.cold_read(handle, 10, 1)) == b"bc"
    disk.close(handle)


def test_a_lock_is_exclusive(tmp_path: Path, disk: SystemDisk) -> None:
    path = str(tmp_path / ".lock")
    handle = disk.lock(path)
    with pytest.raises(BlockingIOError, match="locked by another broker of this process"):
        disk.lock(path)
    as_java = (
        "import fcntl, sys\n"
        "try:\n"
        "    fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError:\n"
        "    sys.exit(3)\n"
    )
    assert subprocess.run([sys.executable, "-c", as_java, path], check=False).returncode == 3
    disk.close(handle)
    again = disk.lock(path)
    assert subprocess.run([sys.executable, "-c", as_java, path], check=False).returncode == 3
    disk.close(again)
    assert subprocess.run([sys.executable, "-c", as_java, path], check=False).returncode == 0


def test_open_files_are_not_inherited(tmp_path: Path, disk: SystemDisk) -> None:
    """Otherwise a child would hold the lock of a broker that has ended."""
    handle = disk.lock(str(tmp_path / ".lock"))
    sees = (
        "import os, sys; sys.exit(any(os.path.realpath(f'/dev/fd/{n}') == sys.argv[1] for n in os.listdir('/dev/fd')))"
    )
    command = [sys.executable, "-c", sees, os.path.realpath(tmp_path / ".lock")]
    assert subprocess.run(command, check=False, close_fds=False).returncode == 0
    disk.close(handle)


def test_work_off_the_loop_keeps_its_order(tmp_path: Path, disk: SystemDisk) -> None:
    done: list[int] = []

    async def scenario() -> None:
        handle = disk.open(str(tmp_path / "f"), create=True)
        await asyncio.gather(*(disk.off_loop(lambda at=at: done.append(at)) for at in range(50)))  # type: ignore[misc]
        await disk.sync(handle)
        await disk.sync_directory(str(tmp_path))
        disk.close(handle)

    asyncio.run(scenario())
    assert done == list(range(50))


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", ""])
def test_port_zero_is_one_port_for_all_addresses(host: str) -> None:
    async def scenario() -> None:
        network = RealWorld().network
        listener = await network.listen(Echo, host, 0)
        assert listener.port > 0
        transport, _ = await network.connect(asyncio.Protocol, "127.0.0.1", listener.port)
        transport.close()
        listener.close()
        with pytest.raises(OSError, match="Connect"):
            await network.connect(asyncio.Protocol, "127.0.0.1", listener.port)

    asyncio.run(scenario())


def test_a_port_in_use_is_an_error() -> None:
    async def scenario() -> None:
        network = RealWorld().network
        listener = await network.listen(Echo, "127.0.0.1", 0)
        with pytest.raises(OSError, match="in use"):
            await network.listen(Echo, "127.0.0.1", listener.port)
        listener.close()

    asyncio.run(scenario())


def test_without_a_full_sync_a_plain_one_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the number of macOS's F_FULLFSYNC, which the Linux kernel does not support."""
    monkeypatch.setattr(syncing, "FULL_SYNC", 51)
    synced: list[int] = []
    with (tmp_path / "f").open("wb") as file:
        sync_to_device(file.fileno(), synced.append)
        assert synced == [file.fileno()]


def test_a_failed_full_sync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports a lost write only once: the next fsync would succeed."""

    def lost(handle: int, command: int) -> int:
        raise OSError(errno.EIO, "lost")

    monkeypatch.setattr(syncing, "FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", lost)
    synced: list[int] = []
    with (tmp_path / "f").open("wb") as file, pytest.raises(OSError, match="lost"):
        sync_to_device(file.fileno(), synced.append)
    assert synced == []
