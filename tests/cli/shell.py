"""Runs the command line as a user does: with arguments, returning the exit code, stdout and stderr."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from kpybroker.cli.commands import run_command
from kpybroker.errors import ConfigError


class Answer(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """Runs commands in this process against one broker, as `python -m kpybroker` would."""

    def __init__(self, bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bootstrap = bootstrap
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Answer:
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        err = io.StringIO()
        with self._monkeypatch.context() as patch, _readable(stdin) as source:
            patch.setenv("KPYBROKER_BOOTSTRAP", self.bootstrap)
            patch.setattr(sys, "stdin", source)
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            try:
                code = run_command(arguments)
            except ConfigError as problem:  # in the same way as __main__ turns it into an exit code
                code = 2
                err.write(f"kpybroker: {problem}\n")
        return Answer(code, out.buffer.getvalue().decode(errors="surrogateescape"), err.getvalue())  # type: ignore[attr-defined]


@contextmanager
def _readable(data: bytes) -> Iterator[Any]:
    """The read end of a pipe that contains these bytes, with its write end closed."""
    reading, writing = os.pipe()
    assert len(data) <= 65536, "more than a pipe holds: use a file"
    os.write(writing, data)
    os.close(writing)
    with open(reading, encoding="utf-8") as source:
        yield source


def kpybroker_process(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    """The real program, as a child process."""
    return subprocess.Popen(
        [sys.executable, "-m", "kpybroker", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def ready(process: subprocess.Popen[str]) -> dict[str, str]:
    """The parsed ready line."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("kpybroker ready "), process.communicate()[1]
    return dict(word.split("=", 1) for word in line.split()[2:])
