"""The Java part of the load of a rolling replacement: a transactional copier, and a Kafka Streams application with
exactly_once_v2 that counts. Both are checked record by record."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import Producer

from compat_tests.client_confluent import Confluent
from compat_tests.pipelines import Program, properties
from compat_tests.rolling import PATIENCE_S, QUIET, Row, Silence, Worker, read_all
from compat_tests.streams_rounds import KEYS, SINK, SOURCE, Counted
from compat_tests.transactors import JAVA, Transactor
from compat_tests.vocabulary import closing

COPIED = "did-"
"""Transacting.java writes this before each value that it copies."""


class Copier:
    """Kafka's Java client. It copies a topic in transactions, with the offsets of a group, until the end of the
    context."""

    def __init__(self, bootstrap: str, source: str, sink: str) -> None:
        self.silence = Silence()
        """Between two transactions."""
        self._bootstrap, self._source, self._sink = bootstrap, source, sink
        self._said: list[str] = []
        self._client = Transactor(JAVA, bootstrap)
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self._client.tell("transform", "java-copier", "java-copiers", self._source, self._sink, "-")
        self._listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.kill9()

    def _listen(self) -> None:
        while (line := self._client.lines.get()) is not None:
            if line.startswith("did "):
                self.silence.heard()
            else:
                self._said.append(line)

    def check(self, stored: dict[int, list[Row]]) -> None:
        """Every record of the source was copied once, in order. Waits until the copier has caught up."""
        wanted = {partition: [number for _, number in rows] for partition, rows in stored.items()}
        total = sum(map(len, wanted.values()))
        copied = read_all(self._bootstrap, self._sink, prefix=COPIED, at_least=total)
        for partition, numbers in wanted.items():
            found = [number for _, number in copied[partition]]
            assert found == numbers, (
                f"{self._sink}-{partition} lacks {sorted(set(numbers) - set(found))} of {len(numbers)} records and has "
                f"{len(found)}; the copier said {self._said[-5:]}"
            )


class Counts(Worker):
    """A Kafka Streams application with exactly_once_v2, and an idempotent producer that sends what it counts."""

    def __init__(self, bootstrap: str, folder: Path, protocol: str) -> None:
        super().__init__()
        self._bootstrap = bootstrap
        self._chance = random.Random(0)
        self._sent: dict[bytes, int] = defaultdict(int)
        # with one request in flight, none is refused because the one before it was, and the epoch never changes
        one_by_one = {"enable.idempotence": True, "max.in.flight.requests.per.connection": 1}
        self._producer = Producer({"bootstrap.servers": bootstrap, **one_by_one, **QUIET})
        more = properties(folder / "streams.properties", {"group.protocol": protocol})
        what = [bootstrap, "counting", "one", str(folder / "state"), "exactly_once_v2", "keys", SOURCE, SINK, more]
        self.program = Program("Counting", *what, log=folder / "counting.log")

    def await_running(self) -> None:
        self.program.until(lambda: "RUNNING" in self.program.tail(), "running")

    def step(self) -> None:
        key = b"k%d" % self._chance.randrange(KEYS)
        self._producer.produce(SOURCE, key)
        self._sent[key] += 1
        self._producer.poll(0.02)

    def finish(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0, "not all records were acknowledged"

    def check(self) -> None:
        """Each record was counted once, and the counts of each key are in order. Ends the application."""
        counted = Counted(Confluent().consumer(self._bootstrap, isolation="read_committed"))
        with closing(counted.consumer):
            counted.await_total(sum(self._sent.values()), [self.program])
            counted.check(self._sent)
