"""Starts clients in separate processes that run transactions: Python clients (`transacting.py`) and Kafka's Java client
(`Transacting.java`)."""

import contextlib
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from compat_tests.clients import CLIENTS
from compat_tests.transacting import END
from compat_tests.vocabulary import Refused
from oracle.jars import jars, java
from oracle.target import die_with_parent
from oracle.tools import compiled

HERE = Path(__file__).resolve().parent
JAVA = "java"
KINDS = (*(client.name for client in CLIENTS), JAVA)
JAVA_FLAGS = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
LOGGING = HERE.parent / "oracle" / "log4j2.properties"
PATIENCE_S = 120.0

Values = dict[int, list[str]]
"""partition -> its values, in order"""


def java_command(source: str, *arguments: str, level: str = "off", more: str = "") -> list[str]:
    """The command that runs a Java file of this folder with Kafka's jars; `more` is added to the class path."""
    flags = [*JAVA_FLAGS, f"-Dlog4j2.configurationFile={LOGGING}", f"-Dkpybroker.log.level={level}"]
    path = ":".join(part for part in (str(compiled(HERE / f"{source}.java")), f"{jars()}/*", more) if part)
    return [java(), *flags, "-cp", path, source, *arguments]


class Transactor:
    """One client process. It executes one command after the other."""

    def __init__(self, kind: str, bootstrap: str) -> None:
        self.kind = kind
        if kind == JAVA:
            command = java_command("Transacting", bootstrap)
        else:
            command = [sys.executable, "-m", "compat_tests.transacting", kind, bootstrap]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=HERE.parent,
            preexec_fn=die_with_parent,
        )
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def tell(self, *words: object) -> None:
        """Send a command without waiting for its result."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(" ".join(map(str, words)) + "\n")
            self._process.stdin.flush()

    def answer(self) -> str:
        """Wait for the result of a command that was sent. Raises Refused with the client's error."""
        line = self.lines.get(timeout=PATIENCE_S)
        assert line is not None, f"the process of {self.kind} has ended with {self._process.wait()}"
        verdict, _, rest = line.partition(" ")
        if verdict != "ok":
            raise Refused(rest)
        return rest

    def do(self, *words: object) -> str:
        """Send a command and wait for its result. Raises Refused with the client's error."""
        self.tell(*words)
        return self.answer()

    def transaction(self, topic: str, *placed: tuple[int, str], end: str = "commit") -> None:
        """Begin, send (partition, value), and end."""
        self.do("begin")
        for partition, value in placed:
            self.do("send", topic, partition, value)
        self.do(end)

    def read(
        self, topic: str, partitions: int = 1, isolation: str = "read_committed", patience_s: float = 60.0
    ) -> Values:
        """Read all records up to the END of each partition, or until none arrive for some time."""
        self.tell("read", isolation, topic, partitions, patience_s)
        return self.told_values(partitions)

    def told_values(self, partitions: int) -> Values:
        """Wait for the result of "read"."""
        found: Values = {partition: [] for partition in range(partitions)}
        for one in self.answer().split():
            partition, _, value = one.partition(":")
            found[int(partition)].append(value)
        return found

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill9(self) -> None:
        """Send SIGKILL. Returns when the process has ended."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill9()


class Transactors:
    """transactors(kind) -> a Transactor that ends with the test."""

    def __init__(self, bootstrap: Callable[[], str]) -> None:
        self._bootstrap = bootstrap
        self._made: list[Transactor] = []

    def __call__(self, kind: str) -> Transactor:
        self._made.append(Transactor(kind, self._bootstrap()))
        return self._made[-1]

    def close(self) -> None:
        for one in self._made:
            one.kill9()


def ends(partitions: int = 1) -> list[tuple[int, str]]:
    """The values of a last transaction, with which a reader detects that it has read all records."""
    return [(partition, END) for partition in range(partitions)]
