"""A producer with acks=all that measures how long the oldest record waits for its acknowledgement."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message

from chaos.history import History, Place
from chaos.librdkafka import FOR_EVER_MS, QUICK, LastingProducer, Settings

TOPIC, PARTITIONS = "probe", 3
"""One partition per broker, so that each broker leads one."""
SILENCE_S = 2.0
EVERY_S = 0.05
LATE_S = 0.5
"""If the probe itself did not run for this long, its measurement is ignored."""


class Probe(threading.Thread):
    """Sends a record to each partition every EVERY_S. Between `watch` and `rest`, a pause of more than `silence_max_s`
    between acknowledgements is an incident, which is reported once until the next acknowledgement. If `silence_max_s`
    is None, pauses are only measured. settings: for TLS and the login."""

    def __init__(self, history: History, bootstrap: str, silence_max_s: float | None, settings: Settings) -> None:
        super().__init__(daemon=True)
        self._silence_max_s = math.inf if silence_max_s is None else silence_max_s
        self._history = history
        self._pending: list[dict[int, float]] = [{} for _ in range(PARTITIONS)]
        """The unacknowledged records of each partition, and when each was sent."""
        self._watched_since = 0.0
        self._is_told = [False] * PARTITIONS
        self._number = 0
        self._wanted = True
        self.longest_s = self.longest_in_trouble_s = 0.0
        """The longest wait of a record while watched, and otherwise."""
        wanted = {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0}
        wanted |= {"message.timeout.ms": FOR_EVER_MS, "request.timeout.ms": "5000", **QUICK, **settings}
        self._producer = LastingProducer(history, "the probe", wanted)
        self.start()

    def watch(self) -> None:
        """From now on a majority is healthy, and long pauses are incidents."""
        self._watched_since = time.monotonic()

    def rest(self) -> None:
        """From now on nodes have faults, and long pauses are allowed."""
        self._watched_since = 0.0

    def run(self) -> None:
        ran_s = time.monotonic()
        while self._wanted:
            with contextlib.suppress(KafkaException, BufferError):  # `poll` replaces a producer that can send no more
                self._send()
            due_s = time.monotonic() + EVERY_S
            while (left_s := due_s - time.monotonic()) > 0:
                self._producer.poll(left_s)
            now_s = time.monotonic()
            if now_s - ran_s > EVERY_S + LATE_S and self._watched_since:
                self._watched_since = now_s
            ran_s = now_s
            self._look(now_s)

    def _send(self) -> None:
        self._number += 1
        for partition, pending in enumerate(self._pending):
            if len(pending) < 1000:
                self._producer.produce(Place(TOPIC, partition), b"", self._done(partition, self._number))
                pending[self._number] = time.monotonic()

    def _done(self, partition: int, number: int) -> Callable[[KafkaError | None, Message], None]:
        def done(error: KafkaError | None, message: Message) -> None:
            sent_s = self._pending[partition].pop(number, None)
            if error is None and sent_s is not None:
                self._is_told[partition] = False

        return done

    def _look(self, now_s: float) -> None:
        since_s = self._watched_since
        for partition, pending in enumerate(self._pending):
            if not pending:
                continue
            waits_s = now_s - max(next(iter(pending.values())), since_s)
            if not since_s:
                self.longest_in_trouble_s = max(self.longest_in_trouble_s, waits_s)
                continue
            self.longest_s = max(self.longest_s, waits_s)
            if waits_s > self._silence_max_s and not self._is_told[partition]:
                self._is_told[partition] = True
                self._history.incident(
                    f"acks=all to {TOPIC}-{partition} has no acknowledgement for more than {self._silence_max_s} s"
                )

    def finish(self) -> None:
        """Stop sending."""
        self._wanted = False
        self.join(30)
