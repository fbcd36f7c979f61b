"""What the processes of a broker write on standard error, for the reports of failed tests."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO

SHOWN_BYTES = 8000
"""The end of what each process has written."""
STDERR = "stderr"


class BrokerOutput:
    """Standard error of the process that was started, and the log file of each node where there are several."""

    def __init__(self, stderr: IO[bytes]) -> None:
        self._stderr = stderr
        self._data_dir: Path | None = None

    def read_logs_in(self, data_dir: Path) -> None:
        """The broker is ready, and has said where it keeps its data."""
        self._data_dir = data_dir

    @property
    def data_dir(self) -> Path | None:
        """Where the broker keeps its data; None until it is ready."""
        return self._data_dir

    def sizes(self) -> dict[str, int]:
        """Bytes written so far, by file."""
        with contextlib.ExitStack() as opened:
            return {name: os.fstat(fd).st_size for name, fd in self._open(opened)}

    def since(self, sizes: dict[str, int]) -> str:
        """What was written after `sizes` was taken, at most SHOWN_BYTES of each file; empty for nothing."""
        texts = []
        with contextlib.ExitStack() as opened:
            for name, fd in self._open(opened):
                end = os.fstat(fd).st_size
                begin = max(sizes.get(name, 0), end - SHOWN_BYTES)
                # read without a seek: the broker writes at the position of this very file
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
