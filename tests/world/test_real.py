"""Tests that the real World fulfils its interface."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kpybroker.world import World
from kpybroker.world.real import RealDisk, RealWorld, real_world
from kpybroker.world.system_disk import SystemDisk
from tests.storage.strict_disk import StrictDisk

DISKS = [RealDisk] if sys.platform == "win32" else [RealDisk, StrictDisk]
LOCKS = (
    "import msvcrt; msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)"
    if sys.platform == "win32"
    else "import fcntl; fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"
)
AS_JAVA = f"""
import sys
file = open(sys.argv[1], "r+")
try:
    {LOCKS}
except OSError:
    sys.exit(3)
"""


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
    assert subprocess.run([sys.executable, "-c", AS_JAVA, path], check=False).returncode == 3
    disk.close(handle)
    again = disk.lock(path)
    assert subprocess.run([sys.executable, "-c", AS_JAVA, path], check=False).returncode == 3
    disk.close(again)
    assert subprocess.run([sys.executable, "-c", AS_JAVA, path], check=False).returncode == 0


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
