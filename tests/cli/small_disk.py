"""Disks that fill up soon: writes fail with a real errno of the operating system, in a child process.

If file systems can be mounted, a small one in memory; everywhere else, a limit on the size of each file.
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
    """A directory whose disk fills up: `why` is the error of a write, `free` does what an operator would do about
    it."""

    def __init__(self, path: Path, why: str, interpreter: list[str], free: Callable[[], None]) -> None:
        self.path = path
        self.why = why
        self.interpreter = interpreter
        """The command that runs Python with the disk limit; after `free`, without it."""
        self._free = free

    def free(self) -> None:
        self._free()
        self.interpreter = [sys.executable]


@contextlib.contextmanager
def limited(path: Path) -> Iterator[SmallDisk]:
    """Every file may have at most FILE_LIMIT_BYTES: "File too large"."""
    interpreter = [sys.executable, "-c", _LIMIT_AND_RUN, str(FILE_LIMIT_BYTES)]
    yield SmallDisk(path, "File too large", interpreter, lambda: None)


@contextlib.contextmanager
def mounted(path: Path) -> Iterator[SmallDisk]:
    """A file system of MOUNTED_BYTES, partly taken by a ballast: "No space left on device". Raises OSError.

    It lives in a mount namespace of its own, held by a child: it disappears however the test ends.
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
