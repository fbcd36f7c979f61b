"""One node of a test cluster: a child process that is started as often as needed, on the same port and data.

CPU-bound tests do not slow it down, a debugger that halts the tests does not halt it, and it serves a client library
that blocks while it holds the GIL. It cannot outlive its parent: it reads its standard input, which closes when the
parent ends, even by SIGKILL. While it is paused, another process waits for that end, and then lets it continue.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from kpybroker.cli.lifetime import HAND_OVER
from kpybroker.testing.forks import keep_from_children
from kpybroker.testing.node import START_TIMEOUT_S, STOP_TIMEOUT_S, BrokerStartError, ReadyFacts
from kpybroker.testing.spares import SPARES
from kpybroker.world import processes

_READY = re.compile(r"kpybroker ready bootstrap=(\S+) data=(.+?) pid=\d+(?: http=(\S+))?(?: client=(.+))?$")
_MISUSED = 2
"""The exit code for invalid settings."""


class NodeProcess:
    """The process of a node. `arguments` are those of the program `kpybroker`; `log` gets its standard error."""

    def __init__(self, node_id: int, arguments: Sequence[str], log: Path) -> None:
        self.node_id = node_id
        self._arguments = [*arguments, "--commands"]
        self._log = log
        self._changing = threading.Lock()
        """Held while the next fields change: threads may pause, end and ask the same node."""
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        """The process that can control the node; not a child that it forks."""
        self._is_ready = False
        self._log_begins_at = 0
        self._waker: subprocess.Popen[bytes] | None = None
        """Lets the process continue, if it is paused, when the parent ends."""
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        """The unread lines of the node's standard output; an empty line is its end."""
        self._one_command = threading.Lock()
        self._numbers = itertools.count(1)

    @property
    def incarnation(self) -> object:
        """Differs after each start. Raises RuntimeError as `pid` does."""
        return self.pid

    @property
    def pid(self) -> int:
        """The process id. Raises RuntimeError if the node has never been started or was stopped."""
        process = self._process
        if process is None:
            raise RuntimeError(f"broker {self.node_id} is stopped; call start() first")
        return process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is running, even if it is paused."""
        process = self._process
        return process is not None and os.getpid() == self._owner and process.poll() is None

    @property
    def is_paused(self) -> bool:
        """Whether the process is halted."""
        return self.is_running and self._waker is not None

    @property
    def takes_commands(self) -> bool:
        """Whether the process is ready, running and not paused."""
        return self._is_ready and self.is_running and self._waker is None

    def ended(self) -> str | None:
        """How the process has ended by itself, for example `ended with code 1`; None while it is running or after
        `stop`."""
        process = self._process
        code = None if process is None else process.poll()
        return None if code is None else _how_it_ended(code)

    def start(self, clock_ahead_ms: int = 0) -> None:
        """Start the process; `wait_until_ready` waits for it. `clock_ahead_ms`: how far its clock is ahead."""
        self._log_begins_at = self._log.stat().st_size if self._log.exists() else 0
        with self._changing:
            self._is_ready = False
            self._process = SPARES.start(self._arguments, self._log, clock_ahead_ms)
            self._lines = queue.SimpleQueue()
            reading = threading.Thread(target=_read_lines, args=(self._process.stdout, self._lines), daemon=True)
        reading.start()

    def wait_until_ready(self) -> ReadyFacts:
        """Wait for the line that the node prints when it is ready. Raises BrokerStartError."""
        with self._changing:
            process, lines = self._process, self._lines
        if process is None:
            raise BrokerStartError(f"broker {self.node_id} was stopped while it started")
        try:
            line = lines.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            self.kill()  # nobody would notice when it is ready
            raise BrokerStartError(
                f"kpybroker is not ready after {START_TIMEOUT_S:g} s: {self._output() or 'it wrote nothing'}"
            ) from None
        ready = _READY.match(line)
        if ready is not None:
            with self._changing:
                self._is_ready = self._process is process
            return ReadyFacts(ready[1], ready[3], None if ready[4] is None else Path(ready[4]))
        code = process.wait(STOP_TIMEOUT_S)
        output = self._output() or "it wrote nothing"
        if code == _MISUSED:  # the error is one line, which refers to command-line options
            reason = output.removeprefix("kpybroker: ").replace("--set: ", "").replace("--set ", "")
            raise BrokerStartError(f"kpybroker does not start: {reason}")
        raise BrokerStartError(f"kpybroker {_how_it_ended(code)}: {output}")

    def command(self, command: Mapping[str, object]) -> dict[str, Any]:
        """Send a command (`cli/control.py`) and return the response.

        Raises ValueError if the command is refused, RuntimeError if the broker is not running or is paused.
        """
        with self._one_command:
            process, lines, number = self._process, self._lines, next(self._numbers)
            if process is None or not self.takes_commands:
                raise RuntimeError(f"broker {self.node_id} {self._state()}, so it takes no commands")
            answer: dict[str, Any] = {}
            try:
                _write(process, json.dumps({**command, "number": number}).encode() + b"\n")
                while answer.get("number") != number:  # an earlier command may have been answered too late
                    line = lines.get(timeout=STOP_TIMEOUT_S)
                    if not line:
                        break
                    answer = json.loads(line) if line.startswith("{") else {}
            except (OSError, queue.Empty):
                answer = {}
        if answer.pop("number", None) != number:
            raise RuntimeError(f"broker {self.node_id} {self.ended() or 'did not answer a command'}")
        if "refused" in answer:
            raise ValueError(answer["refused"])
        return answer

    def _state(self) -> str:
        if self._waker is not None:
            return "is paused"
        return self.ended() or ("is starting" if self.is_running else "is stopped")

    def _output(self) -> str:
        with self._log.open("rb") as log:
            log.seek(self._log_begins_at)
            return log.read().decode(errors="replace").strip()

    def hand_over(self) -> None:
        """Have it hand over its leaderships while the other brokers run. Does nothing if it is stopped or paused."""
        with self._one_command, contextlib.suppress(OSError, queue.Empty):
            process, lines = self._process, self._lines
            if process is not None and self.takes_commands:
                _write(process, HAND_OVER)
                while lines.get(timeout=STOP_TIMEOUT_S).startswith("{"):
                    pass  # the answer of an earlier command, which came too late

    def stop(self) -> None:
        """Stop the node, and wait. Kills it after STOP_TIMEOUT_S."""
        self.resume()
        process = self._process
        if process is not None:
            processes.stop(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """Kill the node as kill -9 does, and wait for its end."""
        with self._changing:
            process, self._process = self._process, None
            self._end_waker()
            if process is not None:
                process.kill()
                process.wait()
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        pipe.close()

    def pause(self) -> None:
        """Halt the process: connections stay open, and requests get no response. Raises RuntimeError if it is
        stopped."""
        with self._changing:
            process = self._running()
            if self._waker is None:
                program = [sys.executable, "-I", "-S", "-c", processes.RESUME_AT_END, str(process.pid)]
                self._waker = subprocess.Popen(program, stdin=subprocess.PIPE, **processes.apart())
                keep_from_children(self._waker.stdin)
            processes.pause(process)

    def resume(self) -> None:
        """Let a paused process continue."""
        with self._changing:
            if self._waker is not None:
                self._end_waker()
                processes.resume(self._running())

    def _end_waker(self) -> None:
        waker, self._waker = self._waker, None
        if waker is not None:
            with waker:
                waker.kill()

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None or process.poll() is not None:
            raise RuntimeError(f"broker {self.node_id} {self.ended() or 'is stopped'}; call start() first")
        return process


def _write(process: subprocess.Popen[bytes], line: bytes) -> None:
    """Raises OSError if the process has ended."""
    assert process.stdin is not None
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except ValueError as closed:  # by `kill` in another thread
        raise BrokenPipeError(str(closed)) from closed


def _read_lines(stdout: IO[bytes], lines: queue.SimpleQueue[str]) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed by `kill`
        for line in stdout:
            lines.put(line.decode(errors="surrogateescape").rstrip("\r\n"))
    lines.put("")


def _how_it_ended(code: int) -> str:
    return f"ended with code {code}" + (f" ({signal.Signals(-code).name})" if code < 0 else "")
