"""Runs a broker as a child process.

It is not a thread, because CPU-bound tests would slow down a broker in the same interpreter, a debugger that halts them
would also halt the broker, and a client library that blocks while it holds the GIL would wait forever. The broker ends
with its parent: it reads its standard input, which is closed when the parent ends, even by SIGKILL.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from kpybroker.testing.output import BrokerOutput
from kpybroker.testing.secure_client import SecureClient

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
PREFIX_MAX = 200
"""Topic names have at most 249 characters."""
BROKERS_MAX = 50
SECURE = ".secure"
"""Appended to the name of a data directory: the directory with the files of `--secure`."""
COMMAND = ("-P", "-m", "kpybroker", "dev", "--port", "0", "--ephemeral", "--until-stdin-closes")
_NOT_IN_TOPIC_NAMES = re.compile(r"[^a-zA-Z0-9._-]")
_READY = re.compile(r"kpybroker ready bootstrap=(\S+) data=(.+) pid=\d+(?: client=(.+))?")
_MISUSED = 2
"""The exit code for invalid settings."""


class _Ready(NamedTuple):
    """The content of the ready line."""

    bootstrap: str
    client: SecureClient | None


class BrokerStartError(RuntimeError):
    """The broker did not start. The text is its standard error."""


class BrokerProcess:
    """A running broker. Create it with `BrokerProcess.started()`."""

    running: set[BrokerProcess] = set()
    """The brokers that this process has started and not yet stopped."""

    def __init__(self, ready: _Ready, process: subprocess.Popen[bytes], output: BrokerOutput) -> None:
        self.bootstrap = ready.bootstrap
        """`host:port`, for a client's bootstrap.servers."""
        self._client = ready.client
        self.pid = process.pid
        self.output = output
        self._process = process
        self._names = itertools.count(1)
        self._mark = uuid.uuid4().hex[:8]

    def __repr__(self) -> str:
        return f"<kpybroker at {self.bootstrap}>"

    @property
    def client(self) -> SecureClient:
        """The settings with which clients connect to a broker that was started with `secure`. Raises ValueError for any
        other broker."""
        if self._client is None:
            raise ValueError("this broker has no logins; start one with BrokerProcess.started(secure=True)")
        return self._client

    def ended(self) -> str | None:
        """How the broker's process has ended, such as `ended with code 1`; None while it runs."""
        code = self._process.poll()
        return None if code is None else _how_it_ended(code)

    def topic(self, prefix: str = "topic") -> str:
        """A unique topic name. The broker creates the topic at its first use unless the test creates it.

        Characters that Kafka refuses in topic names, such as spaces and brackets, become `-`.
        """
        if len(prefix) > PREFIX_MAX:
            raise ValueError(f"a prefix of {len(prefix)} characters; at most {PREFIX_MAX}")
        return f"{_NOT_IN_TOPIC_NAMES.sub('-', prefix)}-{self._mark}-{next(self._names)}"

    @classmethod
    @contextlib.contextmanager
    def started(cls, *settings: str, brokers: int = 1, secure: bool = False) -> Iterator[BrokerProcess]:
        """Start a broker with `settings` (`"name=value"`), and stop it at the end of the context.

        brokers: the number of brokers in the cluster, at most BROKERS_MAX. With several brokers, `bootstrap` names all
        of them, and `pid` is the process that started them. secure: one broker with TLS, a login and ACLs (`kpybroker
        dev --secure`); `client` has the settings that clients need. Raises TypeError and ValueError for settings that
        are not `"name=value"`, BrokerStartError.
        """
        given = [argument for setting in settings for argument in ("--set", _checked(setting))]
        if not 1 <= brokers <= BROKERS_MAX:
            raise ValueError(f"brokers={brokers}: must be from 1 to {BROKERS_MAX}")
        command = [sys.executable, *COMMAND, *(["--secure"] if secure else []), "--brokers", str(brokers), *given]
        with contextlib.ExitStack() as opened:
            stderr = opened.enter_context(tempfile.TemporaryFile())
            alive, held = (opened.enter_context(end) for end in _pipe())
            output = BrokerOutput(stderr)
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C goes only to the tests, which may still need the broker
                pass_fds=(held.fileno(),),
            )
            held.close()
            try:
                broker = cls(_ready_of(process, output), process, output)
                cls.running.add(broker)
                opened.callback(cls.running.discard, broker)
                yield broker
            finally:
                _stop(process)
                _remove(output.data_dir, alive)


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    """A pipe whose read end reports a hangup when the last process that holds the write end has ended."""
    reading, writing = os.pipe()
    return open(reading, "rb", buffering=0), open(writing, "wb", buffering=0)


def _checked(setting: object) -> str:
    if not isinstance(setting, str):
        raise TypeError(
            f"a setting must be a string, as in BrokerProcess.started('num.partitions=3'), not {type(setting).__name__}"
        )
    name, equals, _ = setting.partition("=")
    if not equals or not name.strip():
        raise ValueError("cannot read one of the settings: write 'name=value', such as 'num.partitions=3'")
    if name.strip() in ("log.dir", "log.dirs"):
        raise ValueError(f"{setting!r}: the broker has a temporary directory, and no other can be set")
    return setting


def _ready_of(process: subprocess.Popen[bytes], output: BrokerOutput) -> _Ready:
    """Wait for the ready line. Raises BrokerStartError."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    stdout = process.stdout
    assert stdout is not None
    threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
    try:
        line = lines.get(timeout=START_TIMEOUT_S).decode(errors="surrogateescape")
    except queue.Empty:
        output_text = output.since({}) or "it wrote nothing"
        raise BrokerStartError(f"kpybroker is not ready after {START_TIMEOUT_S:g} s: {output_text}") from None
    ready = _READY.match(line)
    if ready is not None:
        output.read_logs_in(Path(ready[2]))
        return _Ready(ready[1], None if ready[3] is None else SecureClient.of(Path(ready[3])))
    code = process.wait(STOP_TIMEOUT_S)
    output_text = output.since({}) or "it wrote nothing"
    if code == _MISUSED:  # the error is one line that refers to command-line options
        output_text = output_text.removeprefix("kpybroker: ").replace("--set: ", "").replace("--set ", "")
    raise BrokerStartError(f"kpybroker {_how_it_ended(code)}: {output_text}")


def _how_it_ended(code: int) -> str:
    return f"ended with code {code}" + (f" ({signal.Signals(-code).name})" if code < 0 else "")


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


def _remove(data_dir: Path | None, alive: IO[bytes]) -> None:
    """Remove the data directory, which a killed broker leaves behind, once none of its processes can write to it."""
    watch = select.poll()  # select.select supports no descriptor above 1023
    watch.register(alive, select.POLLHUP)
    watch.poll(STOP_TIMEOUT_S * 1000)
    if data_dir is not None:
        for directory in (data_dir, data_dir.with_name(data_dir.name + SECURE)):
            shutil.rmtree(directory, ignore_errors=True)
