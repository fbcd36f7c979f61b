"""Tests of what only POSIX has: descriptors that children inherit, and fcntl."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kpybroker.world import syncing
from kpybroker.world.real import RealDisk
from kpybroker.world.syncing import sync_to_device
from kpybroker.world.system_disk import SystemDisk
from tests.storage.strict_disk import StrictDisk


@pytest.mark.parametrize("kind", [RealDisk, StrictDisk])
def test_open_files_are_not_inherited(tmp_path: Path, kind: type[SystemDisk]) -> None:
    """Otherwise a child would hold the lock of a broker that has ended."""
    disk = kind()
    handle = disk.lock(str(tmp_path / ".lock"))
    sees = (
        "import os, sys; sys.exit(any(os.path.realpath(f'/dev/fd/{n}') == sys.argv[1] for n in os.listdir('/dev/fd')))"
    )
    command = [sys.executable, "-c", sees, os.path.realpath(tmp_path / ".lock")]
    assert subprocess.run(command, check=False, close_fds=False).returncode == 0
    disk.close(handle)


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
