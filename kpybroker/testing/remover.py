"""Temporary directories that are removed even if the test process and its brokers are killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

from kpybroker.testing.forks import keep_from_children
from kpybroker.world.processes import apart

PREFIX = "kpybroker-"
"""The prefix of the names of temporary directories."""
_REMOVE = """
import shutil, sys
names = sys.stdin.buffer.read().split(b"\\0")
for name in filter(None, names):
    shutil.rmtree(name.decode(errors="surrogateescape"), ignore_errors=True)
"""
"""The program that removes the named directories when every process that holds the other end of its input has ended."""


class Remover:
    """A small process that outlives this one. `alive` is the pipe that every broker's process keeps open."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.alive: IO[bytes] = os.fdopen(writing, "wb", buffering=0)
        with os.fdopen(reading, "rb", buffering=0) as end:
            keep_from_children(self.alive)
            self._process = subprocess.Popen([sys.executable, "-I", "-S", "-c", _REMOVE], stdin=end, **apart())

    def new_directory(self) -> Path:
        """Create a temporary directory, which is removed at the latest when all processes have ended."""
        directory = tempfile.mkdtemp(prefix=PREFIX)
        self.alive.write(os.fsencode(directory) + b"\0")
        return Path(directory)


_one = threading.Lock()
_removers: dict[int, Remover] = {}
"""By process: a forked child has its own."""


def remover() -> Remover:
    """The remover of this process, which is started at the first call."""
    with _one:
        if os.getpid() not in _removers:
            _removers[os.getpid()] = Remover()
        return _removers[os.getpid()]
