"""What every process of `dev` and `serve` does: it logs, reports that clients can connect, and waits for the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kpybroker import BUILD
from kpybroker.cli import early
from kpybroker.compiled_build import unsaid_reason
from kpybroker.errors import ConfigError
from kpybroker.world.processes import is_running, when_asked_to_stop

if TYPE_CHECKING:
    from kpybroker.world import World

HAND_OVER = b"hand over\n"
"""The command with which a parent process has a node hand over its leaderships, before it stops all its nodes."""
CONTRADICTED = 3
"""The exit code of a node that has committed metadata which the leader of the quorum lacks. Starting it again does not
help, and may lose its replicas."""
LENGTH_DIGITS = 8
"""The hexadecimal digits of the length of the settings that a parent process writes."""
COMMANDS_MAX = 100
"""The most commands of tests that wait on standard input before its reader waits, too."""
COMMAND_BYTES_MAX = 65536
"""The longest command. A longer line stops the node, as the end of standard input does."""
ONE_WISH_S = 0.5
"""A second SIGINT within this time counts as the same Ctrl-C, forwarded by another process."""


class Lifetime(NamedTuple):
    """The ready file, and events other than signals that stop the node."""

    ready_file: Path | None = None
    until_stdin_closes: bool = False
    takes_commands: bool = False
    """Whether standard input has HAND_OVER and commands of tests (`control.py`), which are answered on standard
    output."""
    world: World | None = None
    """The World of a broker of the test kit, which also keeps the last requests; None: that of this machine."""
    client: Path | None = None
    """The file with the settings that a client needs, if there is one."""
    explained: str = ""
    """Lines to print after the ready line."""


class Facts(NamedTuple):
    """The contents of the ready line and the ready file."""

    bootstrap: str
    data: str
    http: str | None = None
    """host:port of /metrics, /healthz and /readyz."""
    client: Path | None = None


def prepare(lifetime: Lifetime) -> None:
    """Set up logging, and check that the ready file can be written. Raises ConfigError."""
    logging.basicConfig(
        level=_log_level(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if lifetime.ready_file is not None:
        _check_ready_file(lifetime.ready_file)


def log_build() -> None:
    """Log why the interpreted build runs, unless the import of the package has printed it. Logging is set up."""
    if why := unsaid_reason(BUILD):
        logging.getLogger("kpybroker").warning("the interpreted build runs: %s", why)


def end_with(failure: str | None, code: int = 1) -> None:
    """Exit with this code and a line if there was a failure."""
    if failure is not None:
        print(f"kpybroker: stopped: {failure}", file=sys.stderr)
        sys.exit(code)


def written(settings: Mapping[str, str]) -> bytes:
    """The settings of a node, as its parent process writes them to its standard input before all commands."""
    text = json.dumps(dict(settings)).encode()
    return b"%0*x" % (LENGTH_DIGITS, len(text)) + text


def read_settings() -> dict[str, str]:
    """Read what `written` returns from standard input. Raises ConfigError."""
    try:
        found: dict[str, str] = json.loads(_exactly(int(_exactly(LENGTH_DIGITS), 16)))
    except (OSError, ValueError) as error:
        raise ConfigError("--settings-from-parent: the parent process has ended; start it again") from error
    return found


def _exactly(size: int) -> bytes:
    read = b""
    while len(read) < size and (heard := os.read(0, size - len(read))):  # a buffer would take commands from `Stop`
        read += heard
    return read


def _log_level() -> str:
    level = os.environ.get("KPYBROKER_LOG", "WARNING").upper()
    if level not in logging.getLevelNamesMapping():
        raise ConfigError(f"KPYBROKER_LOG={level} is not a log level; write DEBUG, INFO, WARNING or ERROR")
    return level


def _check_ready_file(path: Path) -> None:
    """Check before the start that the ready file can be written. Raises ConfigError."""
    partial = _partial(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a directory")
        partial.touch()
        partial.unlink()
        if _is_left_over(path):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot write --ready-file {path}: {error.strerror}; name a file that can be created"
        ) from error


def _is_left_over(path: Path) -> bool:
    """Whether a killed process left the file behind. A script that waits for the file must not read the old one."""
    try:
        return not is_running(int(json.loads(path.read_text(encoding="utf-8"))["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


class Stop:
    """Receives requests to stop, from signals or the end of stdin.

    A second Ctrl-C exits at once. A second SIGTERM does not: `timeout` and similar tools send one to the process and
    one to its group. A second SIGINT soon after the first one is also ignored, because a wrapper may forward a Ctrl-C.
    """

    def __init__(self) -> None:
        self.wished = asyncio.Event()
        self.hand_over = asyncio.Event()
        """Set when the parent process requests that leaderships are handed over."""
        self.lines: asyncio.Queue[bytes] = asyncio.Queue(COMMANDS_MAX)
        """The lines that the parent process writes to standard input, if it sends commands."""
        self._loop = asyncio.get_running_loop()
        self._wished_at: float | None = None

    def listen(self, lifetime: Lifetime) -> None:
        """Receive requests from now on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            # not add_signal_handler, because its handlers wait while the loop is busy, even for the second signal
            signal.signal(number, self._on_signal)
        if early.ends_at_hangup():
            signal.signal(early.HANGUP, self._on_hangup)
        if early.was_asked_to_stop():
            self.wished.set()
        when_asked_to_stop(self._wish)
        if lifetime.takes_commands:
            threading.Thread(target=self._read_commands, daemon=True).start()
        elif lifetime.until_stdin_closes:
            threading.Thread(target=self._read_stdin, daemon=True).start()

    def _on_signal(self, number: int, frame: object) -> None:
        now = self._loop.time()
        if self._wished_at is None:
            self._wished_at = now
            self._wish()
        elif number == signal.SIGINT and now - self._wished_at >= ONE_WISH_S:
            os._exit(1)

    def _on_hangup(self, number: int, frame: object) -> None:
        self._wish()  # SIGHUP never forces the exit: kernel and shell both send it when a terminal closes

    def _wish(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has already ended
            self._loop.call_soon_threadsafe(self.wished.set)

    def _read_commands(self) -> None:
        rest = b""
        with contextlib.suppress(OSError, RuntimeError):
            while heard := os.read(0, 4096):  # not sys.stdin, whose lock would block the end of the process
                *lines, rest = (rest + heard).split(b"\n")
                for line in lines:
                    if line + b"\n" == HAND_OVER:
                        self._loop.call_soon_threadsafe(self.hand_over.set)
                        continue
                    asyncio.run_coroutine_threadsafe(self.lines.put(line), self._loop).result()
                if len(rest) > COMMAND_BYTES_MAX:
                    break
        self._wish()

    def _read_stdin(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        self._wish()


def report_ready(facts: Facts, ready_file: Path | None) -> None:
    """Report that clients can connect: one line on stdout, and the same as JSON in the file. Raises ConfigError."""
    ready_facts = {"bootstrap": facts.bootstrap, "data": facts.data, "pid": os.getpid()}
    if facts.http is not None:
        ready_facts["http"] = facts.http
    if facts.client is not None:
        ready_facts["client"] = str(facts.client)
    if ready_file is not None:
        try:
            _partial(ready_file).write_text(json.dumps(ready_facts) + "\n", encoding="utf-8")
            _partial(ready_file).replace(ready_file)
        except OSError as error:
            raise ConfigError(f"cannot write --ready-file {ready_file}: {error.strerror}") from error
    say(" ".join(("kpybroker ready", *(f"{name}={fact}" for name, fact in ready_facts.items()))))


def say(line: str) -> None:
    """Print a line on stdout. If that fails, the broker keeps running."""
    try:
        print(line, flush=True)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            why = error.strerror or error
            print(f"kpybroker: cannot write to standard output: {why}; the broker keeps running", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # prevents another write at exit


def complain(*lines: str) -> None:
    """Print lines on stderr. If that fails, the broker keeps running."""
    with contextlib.suppress(OSError):  # nobody reads them, or the terminal is closed
        for line in lines:
            print(line, file=sys.stderr, flush=True)


def remove_ready_file(ready_file: Path | None) -> None:
    """Remove the ready file, if there is one."""
    if ready_file is not None:
        with contextlib.suppress(OSError):
            ready_file.unlink(missing_ok=True)
