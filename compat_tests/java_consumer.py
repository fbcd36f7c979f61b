"""A Java consumer as a child process, which prints its assigned partitions and its records line by line."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from oracle.jars import jars, java
from oracle.target import die_with_parent
from oracle.tools import compiled

SOURCE = Path(__file__).resolve().parent / "Consuming.java"
STOP_S = 60.0


class JavaConsumer:
    """One consumer. `owned` has its assigned partitions, and `read` the records that it has read so far."""

    def __init__(self, bootstrap: str, group: str, how: str, what: str, **settings: str) -> None:
        flags = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        more = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
        classes = compiled(SOURCE)
        self._process = subprocess.Popen(
            [java(), *flags, "-cp", f"{classes}:{jars()}/*", SOURCE.stem, bootstrap, group, how, what, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=die_with_parent,
        )
        self.owned: set[str] = set()
        """The assigned partitions, each as topic-partition."""
        self.read: list[str] = []
        self._reader = threading.Thread(target=self._hear, daemon=True)
        self._reader.start()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "read":
                self.read.append(rest)
            elif word == "assigned":
                self.owned |= set(rest.split(",")) - {""}
            elif word == "revoked":
                self.owned -= set(rest.split(","))

    def close(self) -> None:
        """Let the consumer leave its group, and end its process."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.close()
        assert self._process.wait(STOP_S) == 0
        self._reader.join(STOP_S)
