"""A broker as a child process.

A process and not a thread: tests that compute would slow a broker that shares their interpreter, a debugger that halts
them would halt it, and a client library that blocks while holding the interpreter's lock would wait for ever. It cannot
outlive its parent: the child reads its standard input, which ends when the parent does, by whatever signal.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from typing import IO

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
SHOWN_BYTES = 8000
PREFIX_MAX = 200
"""Topic names have at most 249 characters."""
COMMAND = ("-P", "-m", "kpybroker", "dev", "--port", "0", "--ephemeral", "--until-stdin-closes")


class BrokerStartError(RuntimeError):
    """The broker did not come up; the text is what it said."""


class BrokerProcess:
    """A running broker. Make it with `BrokerProcess.started()`."""

    def __init__(self, bootstrap: str, pid: int) -> None:
        self.bootstrap = bootstrap
        """`host:port`, as a client's bootstrap.servers wants it."""
        self.pid = pid
        self._names = itertools.count(1)
        self._mark = uuid.uuid4().hex[:8]

    def __repr__(self) -> str:
        return f"<kpybroker at {self.bootstrap}>"

    def topic(self, prefix: str = "topic") -> str:
        """A topic name that no other test has; the topic itself is made by its first use, or by yourself."""
        if len(prefix) > PREFIX_MAX:
            raise ValueError(f"a prefix of {len(prefix)} characters; at most {PREFIX_MAX}")
        return f"{prefix}-{self._mark}-{next(self._names)}"

    @classmethod
    @contextlib.contextmanager
    def started(cls, *settings: str, brokers: int = 1) -> Iterator[BrokerProcess]:
        """A broker with `settings` (`name=value`), from ready to stopped. Raises BrokerStartError.

        brokers: so many are one cluster; `bootstrap` then names them all, and `pid` is the process that started them.
        """
        given = [argument for setting in settings for argument in ("--set", setting)]
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                [sys.executable, *COMMAND, "--brokers", str(brokers), *given],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,  # Ctrl-C is for the tests: their teardown may still need the broker
            )
            try:
                yield cls(_bootstrap_of(process, said), process.pid)
            finally:
                _stop(process)


def _bootstrap_of(process: subprocess.Popen[bytes], said: IO[bytes]) -> str:
    """Wait for the ready line."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    stdout = process.stdout
    assert stdout is not None
    threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
    try:
        line = lines.get(timeout=START_TIMEOUT_S).decode(errors="replace")
    except queue.Empty:
        raise BrokerStartError(f"kpybroker is not ready after {START_TIMEOUT_S:g} s: {_tail(said)}") from None
    for word in line.split():
        if word.startswith("bootstrap="):
            return word.removeprefix("bootstrap=")
    process.wait(STOP_TIMEOUT_S)
    raise BrokerStartError(f"kpybroker ended with code {process.returncode}: {_tail(said)}")


def _tail(said: IO[bytes]) -> str:
    said.seek(0)
    return said.read()[-SHOWN_BYTES:].decode(errors="replace").strip() or "it said nothing"


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
