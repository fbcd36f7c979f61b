"""A Java share consumer in a child process, which executes commands and returns their results."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from oracle.jars import jars, java
from oracle.target import die_with_parent
from oracle.tools import compiled

SOURCE = Path(__file__).resolve().parent / "Sharing.java"
STOP_S = 60.0
POLL_MS = 500


class Shared(NamedTuple):
    """One record. `deliveries` counts its deliveries, including this one."""

    partition: int
    offset: int
    deliveries: int
    value: str


class Failed(Exception):
    """The consumer threw an exception with this name."""


class ShareConsumer:
    """One KafkaShareConsumer of a topic."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: object) -> None:
        flags = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        more = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
        self._process = subprocess.Popen(
            [java(), *flags, "-cp", f"{compiled(SOURCE)}:{jars()}/*", SOURCE.stem, bootstrap, group, topic, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=die_with_parent,
        )

    def _do(self, command: str) -> list[list[str]]:
        """Send a command. Returns the lines of the result, split into words. Raises Failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        lines: list[list[str]] = []
        for line in self._process.stdout:
            words = line.split()
            if words[0] == "done":
                return lines
            if words[0] == "failed":
                raise Failed(words[1])
            lines.append(words)
        raise AssertionError(f"it ended at {command!r}")

    def poll(self, timeout_ms: int = POLL_MS) -> list[Shared]:
        """The records of one poll."""
        return [
            Shared(int(partition), int(offset), int(deliveries), value)
            for _, partition, offset, deliveries, value in self._do(f"poll {timeout_ms}")
        ]

    def poll_until(self, count: int, polls: int = 60) -> list[Shared]:
        """Poll until there are `count` records, at most `polls` times."""
        found: list[Shared] = []
        for _ in range(polls):
            found += self.poll()
            if len(found) >= count:
                break
        return found

    def acknowledge(self, record: Shared, kind: str) -> None:
        """ACCEPT, RELEASE, REJECT or RENEW."""
        self._do(f"acknowledge {record.partition} {record.offset} {kind}")

    def commit(self) -> dict[int, str]:
        """Commit the acknowledgements. Returns the result for each partition: NONE, or the name of an exception."""
        return {int(partition): code for _, partition, code in self._do("commit")}

    def close(self) -> None:
        """Let the consumer leave its group, and end the process."""
        self._do("close")
        assert self._process.wait(STOP_S) == 0

    def kill(self) -> None:
        """Kill the process, so that the consumer does not leave its group."""
        self._process.kill()
        self._process.wait(STOP_S)
