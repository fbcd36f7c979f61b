"""Runs the real program with several brokers, and reads their common log."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

WAIT_S = 60
Start = Callable[..., subprocess.Popen[str]]


def pid_of(directory: Path, node_id: int) -> int:
    """The process id of a node of `dev`."""
    return int(json.loads((directory / f"node-{node_id}.ready").read_text())["pid"])


def stopped(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Stop it. The exit code, and the rest of stdout and stderr (which `communicate` would not have in full)."""
    process.send_signal(signal.SIGTERM)
    return ended(process)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for its end. The exit code, and the rest of stdout and stderr."""
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    return process.wait(WAIT_S), out, err


def lines_of(log: str, node_id: int) -> list[str]:
    """The lines of a node in the common log."""
    return [line for line in log.splitlines() if line.startswith(f"node {node_id} | ")]


def log_until(process: subprocess.Popen[str], text: str) -> str:
    """The log up to the next line with a text, which is on the way."""
    assert process.stderr is not None
    log = ""
    while line := process.stderr.readline():
        log += line
        if text in line:
            return log
    raise AssertionError(f"no line has {text!r}: {log}")


def last_line(log: str) -> str:
    """The last line of a log."""
    return log.splitlines()[-1]
