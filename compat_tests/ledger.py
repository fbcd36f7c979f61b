"""The ledger, a copy of the acknowledged data of a broker outside the broker, and the load that fills it."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.vocabulary import Client, Message, Placed, Refused, closing

PATIENCE_S = 120.0
PARTITIONS = 3
KEPT_TOPICS = 20
BATCH_BYTES = 16_384


@dataclass
class Ledger:
    """The acknowledged data. The threads of the load write to it, and it is read between two rounds."""

    placed: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    """(partition, offset) -> (producer, number)"""
    committed: dict[int, int] = field(default_factory=dict)
    """partition -> the highest offset whose commit was acknowledged"""
    created: dict[str, int] = field(default_factory=dict)
    """topic -> its partitions, unless its deletion was requested"""
    deleted: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def records(self) -> int:
        return len(self.placed)


class Worker:
    """A thread that repeats a step until it is stopped."""

    def __init__(self, ledger: Ledger, step: Callable[[], None], pause_s: float) -> None:
        self._stop = threading.Event()
        self._ledger = ledger
        self._step = step
        self._pause_s = pause_s
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            try:
                self._step()
            except Exception as failure:  # noqa: BLE001 - told by whoever reads the ledger
                with self._ledger.lock:
                    self._ledger.failures.append(repr(failure))
                return

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the load does not end"


class Production:
    """One idempotent producer that numbers its records per partition."""

    def __init__(self, ledger: Ledger, client: Client, bootstrap: str, topic: str, name: str) -> None:
        self._ledger = ledger
        self._topic = topic
        self._name = name
        self._random = random.Random(name)
        self._next = dict.fromkeys(range(PARTITIONS), 0)
        self._producer = client.producer(
            bootstrap, acks="idempotent", linger_ms=2, patience_s=PATIENCE_S, batch_bytes=BATCH_BYTES
        )

    def step(self) -> None:
        for _ in range(20):
            partition = self._random.randrange(PARTITIONS)
            number = self._next[partition]
            self._next[partition] += 1
            padding = b"." * self._random.randrange(400)
            value = f"{self._name} {number} ".encode() + padding
            self._producer.send(self._topic, Message(value, partition=partition), self._done(number))

    def _done(self, number: int) -> Callable[[Placed | Refused], None]:
        def done(outcome: Placed | Refused) -> None:
            with self._ledger.lock:
                if isinstance(outcome, Refused):
                    self._ledger.failures.append(f"{self._name} {number}: {outcome}")
                elif outcome.offset >= 0:
                    self._ledger.placed[(outcome.partition, outcome.offset)] = (self._name, number)

        return done

    def finish(self) -> None:
        with closing(self._producer):
            self._producer.flush(PATIENCE_S)


class Commits:
    """A group member that reads all records and commits after each poll."""

    def __init__(self, ledger: Ledger, client: Client, bootstrap: str, topic: str, group: str) -> None:
        self._ledger = ledger
        self._topic = topic
        self._consumer = client.consumer(bootstrap, group=group)
        self._consumer.subscribe([topic])

    def step(self) -> None:
        found = self._consumer.poll(0.1)
        if not found:
            return
        try:
            self._consumer.commit()
        except Refused:
            return  # the broker is down, or its member is not known yet
        with self._ledger.lock:
            for one in found:
                if one.offset + 1 > self._ledger.committed.get(one.partition, 0):
                    self._ledger.committed[one.partition] = one.offset + 1

    def finish(self) -> None:
        self._consumer.close()


class Topics:
    """Creates topics and deletes old ones."""

    def __init__(self, ledger: Ledger, bootstrap: str, prefix: str) -> None:
        self._ledger = ledger
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._prefix = prefix
        self._made = 0

    def step(self) -> None:
        name, partitions = f"{self._prefix}-{self._made}", 1 + self._made % 3
        self._made += 1
        try:
            self._admin.create_topics([NewTopic(name, partitions, 1)], request_timeout=5)[name].result(10)
        except KafkaException:
            return  # the topic may or may not exist
        with self._ledger.lock:
            self._ledger.created[name] = partitions
            old = next(iter(self._ledger.created)) if len(self._ledger.created) > KEPT_TOPICS else None
            if old is not None:
                del self._ledger.created[old]
        if old is not None:
            try:
                self._admin.delete_topics([old], request_timeout=5)[old].result(10)
            except KafkaException:
                return
            with self._ledger.lock:
                self._ledger.deleted.add(old)
