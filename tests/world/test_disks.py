"""The disks of all systems do the same, whatever is renamed or deleted while it is open."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from kpybroker.world import windows_disk
from kpybroker.world.portable_disk import PortableDisk
from kpybroker.world.real import RealDisk
from kpybroker.world.system_disk import SystemDisk
from kpybroker.world.windows_disk import persistently, windows_path
from tests.storage.strict_disk import StrictDisk

STEPS = 400
NAMES = ("a", "b", "c")
FOLDERS = ("p-0", "p-1")


class Play:
    """Random operations on a disk. Everything that it returns is noted in `told`."""

    def __init__(self, disk: SystemDisk, root: Path, seed: int) -> None:
        self.disk = disk
        self.root = str(root)
        self.random = Random(seed)
        self.told: list[object] = []
        self.handles: dict[int, str] = {}
        """The path of each handle. Handles of deleted and of replaced files are closed at once."""
        for folder in FOLDERS:
            disk.mkdir(f"{self.root}/{folder}")

    def path(self) -> str:
        return f"{self.root}/{self.random.choice(FOLDERS)}/{self.random.choice(NAMES)}"

    def take_out(self, path: str) -> None:
        for handle in [each for each, at in self.handles.items() if at == path or at.startswith(f"{path}/")]:
            del self.handles[handle]
            self.disk.close(handle)

    def step(self) -> None:
        disk, random, path = self.disk, self.random, self.path()
        match random.randrange(7):
            case 0 if len(self.handles) < 8:
                self.handles[disk.open(path, create=True)] = path
            case 1 if disk.exists(path):
                disk.unlink(path)
                self.take_out(path)
            case 2 if disk.exists(path) and (new := self.path()) != path:
                disk.rename(path, new)
                self.take_out(new)
                self.handles |= {each: new for each, at in self.handles.items() if at == path}
            case 3:
                old, new = (f"{self.root}/{folder}" for folder in FOLDERS)
                aside = f"{self.root}/aside"
                for source, target in ((old, aside), (new, old), (aside, new)):
                    disk.rename(source, target)
                    self.handles |= {
                        each: target + at[len(source) :]
                        for each, at in self.handles.items()
                        if at.startswith(f"{source}/")
                    }
            case _ if self.handles:
                self.use(random.choice(list(self.handles)))

    def use(self, handle: int) -> None:
        disk, random = self.disk, self.random
        offset, size = random.randrange(50), random.randrange(1, 50)
        match random.randrange(4):
            case 0:
                disk.truncate(handle, offset)
            case 1:
                disk.sync_blocking(handle)
            case _:
                disk.pwritev(handle, [random.randbytes(size), b"|"], offset)
        self.told += [disk.size(handle), disk.pread(handle, size, offset)]
        found = disk.pread_nowait(handle, size, offset)
        self.told.append(None if found is None else bytes(found))
        if found is not None:
            disk.give_back(found)

    def whole(self) -> list[object]:
        for _ in range(STEPS):
            self.step()
        for handle in self.handles:
            self.disk.close(handle)
        listed = [
            f"{self.root}/{folder}/{name}" for folder in FOLDERS for name in self.disk.list(f"{self.root}/{folder}")
        ]
        self.told += [(path.removeprefix(self.root), Path(path).read_bytes()) for path in listed]
        return self.told


@pytest.mark.parametrize("seed", range(5))
def test_all_disks_return_the_same(tmp_path: Path, seed: int) -> None:
    plays = [
        Play(disk(), tmp_path / str(number), seed) for number, disk in enumerate((RealDisk, PortableDisk, StrictDisk))
    ]
    real, portable, strict = (play.whole() for play in plays)
    assert real == portable == strict
    assert len(real) > STEPS // 4


@pytest.fixture
def _hasty_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_hasty_threads")
def test_threads_read_and_write_what_they_mean_while_files_move(tmp_path: Path) -> None:
    """There is one position for each open file, and a rename closes it."""
    disk = StrictDisk()
    disk.mkdir(str(tmp_path / "p-0"))
    handle = disk.open(str(tmp_path / "p-0" / "f"), create=True)
    pieces = [bytes([number]) * 100 for number in range(200)]

    async def scenario() -> None:
        writes = [disk.write_soon(handle, piece, number * 100) for number, piece in enumerate(pieces)]
        reads = [disk.cold_read(handle, 100, 0) for _ in range(50)]
        for number in range(20):
            disk.rename(str(tmp_path / f"p-{number}"), str(tmp_path / f"p-{number + 1}"))
            await asyncio.sleep(0)
        for write in writes:
            write.result()
        await asyncio.gather(*reads)
        found = await asyncio.gather(
            *(disk.cold_read(handle, 100, number * 100) for number in range(200)),
            *(disk.cold_read(handle, 100, number * 100) for number in range(200)),
        )
        assert found == pieces + pieces

    asyncio.run(scenario())
    disk.close(handle)
    disk.shutdown()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_deleted_file_cannot_be_used_any_more(tmp_path: Path, is_replaced: bool) -> None:
    """Its handle must not reach another file that has its name."""
    disk, path, other = StrictDisk(), str(tmp_path / "f"), str(tmp_path / "other")
    handle = disk.open(path, create=True)
    disk.close(disk.open(other, create=True))
    if is_replaced:
        disk.rename(other, path)
    else:
        disk.unlink(path)
        disk.close(disk.open(path, create=True))
    for use in (lambda: disk.pread(handle, 1, 0), lambda: disk.pwritev(handle, [b"x"], 0), lambda: disk.size(handle)):
        with pytest.raises(OSError, match="deleted while it was open") as refused:
            use()
        assert refused.value.errno == errno.EBADF
    disk.close(handle)
    assert Path(path).read_bytes() == b""


def test_a_refused_rename_leaves_the_file_usable(tmp_path: Path) -> None:
    disk, path = StrictDisk(), str(tmp_path / "f")
    handle = disk.open(path, create=True)
    disk.pwritev(handle, [b"kept"], 0)
    another_program = os.open(path, os.O_RDONLY)
    for refused in (lambda: disk.rename(path, path + ".deleted"), lambda: disk.unlink(path)):
        with pytest.raises(PermissionError):
            refused()
        assert disk.pread(handle, 9, 0) == b"kept"
    os.close(another_program)
    disk.rename(path, path + ".deleted")
    assert disk.pread(handle, 9, 0) == b"kept"
    disk.close(handle)


@pytest.mark.parametrize(
    ("path", "native"),
    [
        ("C:/data/t-0/00.log", r"\\?\C:\data\t-0\00.log"),
        ("C:/data/../con.t-0", r"\\?\C:\con.t-0"),
        ("//host/share/data", r"\\?\UNC\host\share\data"),
        (r"\\?\C:\data", r"\\?\C:\data"),
    ],
)
def test_windows_takes_long_and_reserved_names_as_they_are(path: str, native: str) -> None:
    assert windows_path(path) == native


def refusing(times: int, error: type[OSError]) -> tuple[Callable[[], None], list[int]]:
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        if len(calls) <= times:
            raise error(errno.EACCES, "another program has the file open")

    return work, calls


def test_windows_work_is_repeated_while_another_program_has_the_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_disk, "PATIENCE_S", 60)
    work, calls = refusing(3, PermissionError)
    persistently(work)
    assert len(calls) == 4
    work, calls = refusing(3, FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        persistently(work)
    assert len(calls) == 1


def test_windows_work_is_not_repeated_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_disk, "PATIENCE_S", 0.05)
    work, _ = refusing(1 << 30, PermissionError)
    with pytest.raises(PermissionError):
        persistently(work)
