"""Runs Kafka's Java client as a load (`JavaLoad.java`), and adds its output to the history."""

from __future__ import annotations

import math
import subprocess
import threading
import time
from pathlib import Path

from chaos.history import SOMEWHERE, UNKNOWN, Commit, History, Place
from chaos.librdkafka import key_in
from oracle.jars import jars, java
from oracle.target import die_with_parent
from oracle.tools import HERE, compiled

SOURCE = Path(__file__).resolve().parent / "JavaLoad.java"


class JavaLoad:
    """A producer and a group member in one process. The client's warnings are written to `log`."""

    def __init__(
        self,
        history: History,
        bootstrap: str,
        places: list[Place],
        number: int,
        per_second: float,
        group: str,
        log: Path,
        settings: Path | None = None,
    ) -> None:
        """settings: a file with additional client settings."""
        self._history = history
        self._topic = places[0].topic
        self._number = number
        self._group = group
        self._commit_began_s = 0.0
        self._ended = {letter: threading.Event() for letter in "PE"}
        self.last_ack_s = 0.0
        flags = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dkpybroker.log.level=warn"]
        flags += [f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"]
        load = [bootstrap, self._topic, str(len(places)), str(number), str(per_second), group]
        load += [] if settings is None else [str(settings)]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [java(), *flags, "-cp", f"{compiled(SOURCE)}:{jars()}/*", "JavaLoad", *load],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                preexec_fn=die_with_parent,
            )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._take(line.decode().rstrip("\n").split(" ", 3))

    def _take(self, words: list[str]) -> None:
        what, *rest = words
        if what in self._ended:
            self._ended[what].set()
        elif what == "T":
            self._commit_began_s = time.monotonic()
        elif what in "AFRCU" and len(rest) >= 2:
            place = Place(self._topic, int(rest[0]))
            if what == "A":
                self.last_ack_s = time.monotonic()
                offset = int(rest[2])
                self._history.ack(place, self._number, int(rest[1]), SOMEWHERE if offset < 0 else offset)
            elif what == "F":
                self._history.ack(place, self._number, int(rest[1]), UNKNOWN)
                self._history.incident(f"Java producer {self._number} gave up: {' '.join(rest)}")
            elif what == "R":
                self._history.read(place, "java", int(rest[1]), key_in(f"{rest[2]} ".encode()))
            else:
                acked_s = time.monotonic() if what == "C" else math.inf
                self._history.commit(self._group, place, Commit(self._commit_began_s, acked_s, int(rest[1])))

    def stop(self) -> None:
        """Stop sending."""
        self._send_line()

    def finish(self, patience_s: float) -> None:
        """Wait until all records are acknowledged. Call `stop` first."""
        if not self._ended["P"].wait(patience_s):
            self._history.incident(
                f"Java producer {self._number}: not all records were acknowledged within {patience_s} s"
            )

    def close(self) -> None:
        """Stop the group member, and the process."""
        self._send_line()
        self._ended["E"].wait(30)
        self._process.kill()
        self._process.wait()
        self._thread.join(10)

    def _send_line(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
