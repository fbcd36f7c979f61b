"""Processes of brokers that are started before they are needed, because their imports take most of a start."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from kpybroker.testing.forks import keep_from_children
from kpybroker.testing.remover import remover
from kpybroker.world.processes import apart

SPARES_MAX = 3
"""The most processes that wait for a command: the brokers of one cluster."""
_PROGRAM = [sys.executable, "-P", "-m", "kpybroker.testing.node_program"]


class Spares:
    """The processes of this test process that wait for a command. They end with it."""

    def __init__(self) -> None:
        self._waiting: list[subprocess.Popen[bytes]] = []
        self._wanted = 0
        self._one = threading.Lock()

    def keep(self, count: int) -> None:
        """Keep this number of processes waiting from now on, at most SPARES_MAX."""
        with self._one:
            self._wanted = min(count, SPARES_MAX)
            self._refill()

    def start(self, arguments: Sequence[str], log: Path, clock_ahead_ms: int = 0) -> subprocess.Popen[bytes]:
        """A process that executes the program `kpybroker` with these arguments. `log` gets its standard error;
        `clock_ahead_ms`: how far its clock is ahead."""
        with self._one:
            waiting = [each for each in self._waiting if each.poll() is None]
            process = waiting.pop(0) if waiting else _new()
            self._waiting = waiting
            command = {
                "arguments": list(arguments),
                "clock_ahead_ms": clock_ahead_ms,
                "directory": os.getcwd(),
                "environment": dict(os.environ),
                "log": str(log),
            }
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended: whoever waits until it is ready notices
                process.stdin.write(json.dumps(command).encode() + b"\n")
                process.stdin.flush()
            return process

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that wait."""
        return [each.pid for each in self._waiting if each.poll() is None]

    def close(self) -> None:
        """End all processes that wait."""
        with self._one:
            self._wanted = 0
            for each in self._waiting:
                with each:
                    each.kill()
            self._waiting.clear()

    def refill(self) -> None:
        """Start processes in place of those that were taken."""
        with self._one:
            self._refill()

    def _refill(self) -> None:
        self._waiting = [each for each in self._waiting if each.poll() is None]
        while len(self._waiting) < self._wanted:
            self._waiting.append(_new())


def _new() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        _PROGRAM,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Ctrl-C must reach only the tests, whose teardown may still need the broker
        **apart([remover().alive.fileno()]),
    )
    keep_from_children(process.stdin)
    return process


SPARES = Spares()
