"""Reads the standard error of broker processes, for the reports of failed tests."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO

SHOWN_BYTES = 8000
"""The most bytes shown from the end of each process's output."""
STDERR = "stderr"


class BrokerOutput:
    """The standard error of the started process and, for a cluster, the log file of each node."""

    def __init__(self, stderr: IO[bytes]) -> None:
        self._stderr = stderr
        self._data_dir: Path | None = None

    def read_logs_in(self, data_dir: Path) -> None:
        """Also read the log files in the broker's data directory."""
        self._data_dir = data_dir

    @property
    def data_dir(self) -> Path | None:
        """The broker's data directory; None until it is ready."""
        return self._data_dir

    def sizes(self) -> dict[str, int]:
        """Bytes written so far, by file."""
        with contextlib.ExitStack() as opened:
            return {name: os.fstat(fd).st_size for name, fd in self._open(opened)}

    def since(self, sizes: dict[str, int]) -> str:
        """The output since `sizes` was measured, at most SHOWN_BYTES of each file; empty if there is none."""
        texts = []
        with contextlib.ExitStack() as opened:
            for name, fd in self._open(opened):
                end = os.fstat(fd).st_size
                begin = max(sizes.get(name, 0), end - SHOWN_BYTES)
                # pread, because the broker shares the position of this file
                text = os.pread(fd, max(0, end - begin), begin).decode(errors="replace").strip()
                if text:
                    texts.append(text if name == STDERR else f"{name}:\n{text}")
        return "\n".join(texts)

    def _open(self, opened: contextlib.ExitStack) -> list[tuple[str, int]]:
        found = [(STDERR, self._stderr.fileno())]
        if self._data_dir is not None:
            for path in sorted(self._data_dir.glob("node-*.log")):
                found.append((path.name, opened.enter_context(path.open("rb")).fileno()))
        return found
