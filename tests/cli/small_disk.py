"""Small disks for tests, on which writes of a child process soon fail with a real errno of the operating system.

If file systems can be mounted, the disk is a small file system in memory; otherwise it is a limit on the size of each
file.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

MOUNTED_BYTES = 4 << 20
BALLAST_BYTES = 1 << 20
FILE_LIMIT_BYTES = 1 << 20
_MOUNT_AND_WAIT = 'mount -t tmpfs -o size="$1" tmpfs "$2" && echo mounted && exec cat'
_LIMIT_AND_RUN = (
    "import os, resource, sys\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])\n"
)


class SmallDisk:
    """A directory on a disk that fills up. `why` is the error of a write; `free` makes space, as an operator would."""

    def __init__(self, path: Path, why: str, interpreter: list[str], free: Callable[[], None]) -> None:
        self.path = path
        self.why = why
        self.interpreter = interpreter
        """The command that runs Python with the disk limit, or without it after `free`."""
        self._free = free

    def free(self) -> None:
        self._free()
        self.interpreter = [sys.executable]


@contextlib.contextmanager
def limited(path: Path) -> Iterator[SmallDisk]:
    """A directory in which every file may have at most FILE_LIMIT_BYTES. The error is "File too large"."""
    interpreter = [sys.executable, "-c", _LIMIT_AND_RUN, str(FILE_LIMIT_BYTES)]
    yield SmallDisk(path, "File too large", interpreter, lambda: None)


@contextlib.contextmanager
def mounted(path: Path) -> Iterator[SmallDisk]:
    """A file system of MOUNTED_BYTES, partly filled with a ballast file. The error is "No space left on device". Raises
    OSError.

    It is mounted in a separate mount namespace of a child process, so it disappears however the test ends.
    """
    unshare = ["unshare", "--mount", "--map-root-user", "sh", "-c", _MOUNT_AND_WAIT, "sh"]
    with subprocess.Popen(
        [*unshare, str(MOUNTED_BYTES), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            if holder.stdout.readline() != "mounted\n":
                raise OSError("no file system may be mounted here")
            inside = Path(f"/proc/{holder.pid}/root{path}")
            ballast = inside / "ballast"
            ballast.write_bytes(bytes(BALLAST_BYTES))
            yield SmallDisk(inside / "data", "No space left on device", [sys.executable], ballast.unlink)
        finally:
            holder.stdin.close()


def may_mount(path: Path) -> bool:
    try:
        with mounted(path):
            return True
    except OSError:
        return False
