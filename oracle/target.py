"""The common interface of both brokers for tests, and the child process in which a broker runs."""

import atexit
import contextlib
import ctypes
import json
import os
import random
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None


class NotStarted(Exception):
    """The broker exited or did not respond in time; the text contains the end of its log."""


class Target(Protocol):
    """One broker on this machine. After a kill or stop it keeps its directory and its port for `restart`."""

    name: str
    directory: Path
    """All files of this broker: its data in `directory / "data"`, its output in `directory / "output.log"`."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def data(self) -> Path: ...
    def start(self) -> Self: ...
    def kill9(self) -> None: ...
    def stop(self) -> int: ...
    def restart(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


CLAIMS_MAX = 200
_claims: deque[contextlib.ExitStack] = deque()


def steady_port(count: int = 1) -> int:
    """The first of `count` consecutive free ports. No outgoing connection uses them while their server is down.

    They are not ephemeral ports, and no other caller receives them, in this process or another: each port is reserved
    by a UDP socket on the same port, until this process ends or CLAIMS_MAX more ports are reserved.
    """
    while True:
        first = random.SystemRandom().randrange(10_000, 32_000 - count)
        with contextlib.ExitStack() as claimed, contextlib.suppress(OSError):
            for port in range(first, first + count):
                claim = claimed.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                claim.bind(("127.0.0.1", port))
                socket.create_server(("127.0.0.1", port)).close()
            _claims.append(claimed.pop_all())
            if len(_claims) > CLAIMS_MAX:
                _claims.popleft().close()
            return first


def die_with_parent() -> None:
    """Call this in a child before exec: the kernel then kills the child when the thread that started it ends (Linux
    only)."""
    if _libc is not None and hasattr(_libc, "prctl"):
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def answers(host: str, port: int, context: ssl.SSLContext | None = None) -> bool:
    """Whether a broker replies to ApiVersions v0, over TLS if there is a context."""
    try:
        with contextlib.ExitStack() as opened:
            connection = opened.enter_context(socket.create_connection((host, port), timeout=2))
            if context is not None:
                connection = opened.enter_context(context.wrap_socket(connection, server_hostname=host))
            connection.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
            return len(connection.recv(4)) == 4
    except OSError:
        return False


class ServerProcess:
    """A broker as a child process. Subclasses define `command()`, and `ready()`, which checks whether it serves."""

    name = "?"
    start_timeout_s = 120.0

    def __init__(self, directory: Path | None, properties: Mapping[str, str] | None, port: int) -> None:
        self._own = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.properties = dict(properties or {})
        self.port = port
        self.added_environment: dict[str, str] = {}
        """Additional environment variables."""
        self.descriptors = 0
        """The limit of open files (ulimit -n); 0 means the limit of this process."""
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def ready(self) -> bool:
        return answers("127.0.0.1", self.port)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def output(self) -> Path:
        return self.directory / "output.log"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the broker and wait until it responds. Raises NotStarted if it exits or does not respond."""
        self.spawn()
        return self.await_ready()

    def spawn(self) -> None:
        """Start the process without waiting for it. It ends with the thread that calls this."""
        assert not self.running, "already running"
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self._limited(self.command()),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                preexec_fn=die_with_parent,
                env=self.environment() | self.added_environment,
            )
        atexit.register(self.kill9)

    def _limited(self, command: list[str]) -> list[str]:
        if not self.descriptors:
            return command
        return ["sh", "-c", f'ulimit -n {self.descriptors} && exec "$@"', "sh", *command]

    def await_ready(self) -> Self:
        """Wait until the broker responds. Raises NotStarted if it exits or does not respond."""
        assert self._process is not None, "not started"
        deadline = time.monotonic() + self.start_timeout_s
        while not self.ready():
            if not self.running:
                raise NotStarted(f"{self.name} exited with {self._process.returncode}:\n{self._tail()}")
            if time.monotonic() > deadline:
                self.kill9()
                raise NotStarted(f"{self.name} did not respond within {self.start_timeout_s:.0f} s:\n{self._tail()}")
            time.sleep(0.05)
        return self

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def kill9(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        atexit.unregister(self.kill9)

    def stop(self) -> int:
        """Send SIGTERM. Returns the exit code; -9 if the process had to be killed after 30 s."""
        if self._process is None:
            return 0
        self._process.terminate()
        return self.await_end()

    def await_end(self) -> int:
        """Wait until the process ends. Returns the exit code; -9 if the process had to be killed after 30 s."""
        assert self._process is not None, "not started"
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        atexit.unregister(self.kill9)
        return self._process.returncode

    def restart(self) -> None:
        """Start again on the same directory and port, after `stop` or `kill9`. Stops a running broker first."""
        if self.running:
            self.stop()
        self.start()

    def remove(self) -> None:
        """Delete the directory, unless it belongs to the caller."""
        if self._own:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _tail(self, size_bytes: int = 4000) -> str:
        return self.output.read_bytes()[-size_bytes:].decode(errors="replace")

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None:
            self.remove()


def read_json(path: Path) -> dict[str, object] | None:
    """The JSON object in a file that another process may be writing; None while it is incomplete."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
