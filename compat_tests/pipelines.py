"""Runs software on top of Kafka in separate JVMs: a Streams application, Connect, MirrorMaker 2."""

import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from compat_tests.transactors import HERE, JAVA_FLAGS, LOGGING
from oracle.jars import java, pipelines
from oracle.target import die_with_parent
from oracle.tools import compiled

PATIENCE_S = 120.0
CONNECT = "org.apache.kafka.connect.cli.ConnectStandalone"
MIRROR_MAKER = "org.apache.kafka.connect.mirror.MirrorMaker"


class Program:
    """A Java program with its output in a file. It can be started again after its end, and then continues at its
    position."""

    def __init__(self, main: str, *arguments: str, log: Path, memory: str = "256m") -> None:
        source = HERE / f"{main}.java"
        path = [str(compiled(source, pipelines()))] if source.exists() else []
        flags = [*JAVA_FLAGS, f"-Xmx{memory}", f"-Dlog4j2.configurationFile={LOGGING}"]
        self._command = [java(), *flags, "-cp", ":".join([*path, f"{pipelines()}/*"]), main, *arguments]
        self.log = log
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=die_with_parent
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def await_end(self) -> int:
        """Wait until the program has ended by itself. Returns the exit code. Raises AssertionError, with the end of the
        log, if the program does not end."""
        try:
            return self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {PATIENCE_S:.0f} s:\n{self.tail()}") from None

    def kill9(self) -> None:
        """Send SIGKILL. Returns when the process has ended."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM, so that the program can shut down cleanly."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds. AssertionError with the end of the log if it does not."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.running, f"ended before {what}:\n{self.tail()}"
            assert time.monotonic() < deadline, f"timed out: {what}, after {PATIENCE_S:.0f} s:\n{self.tail()}"
            time.sleep(0.1)

    def tail(self) -> str:
        """The end of the program's output."""
        return self.log.read_text(errors="replace")[-6000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill9()


def properties(path: Path, settings: Mapping[str, object]) -> str:
    """Write a properties file; returns its path."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)
