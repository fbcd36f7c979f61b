"""The load of a rolling replacement, and what must be true of it afterwards.

All clients are librdkafka's. They run from the first node's stop to the last node's start, and know only the bootstrap
addresses. Every record's value is a number, in the order of its partition.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

PARTITIONS = 6
PATIENCE_S = 60.0
QUIET: dict[str, Any] = {"log_level": 0, "reconnect.backoff.max.ms": 500}
COMMIT_EVERY = 200
"""The records between two commits of a group."""
ABORTED_EVERY = 4
"""Every so many transactions, one is aborted."""

Row = tuple[int, int]
"""Offset and number of a record."""


class Silence:
    """The longest time between two answers, in seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heard_s: dict[object, float] = {}
        self._longest_s = 0.0

    def heard(self, place: object = None) -> None:
        """Note an answer. The silences of different places are measured apart."""
        now_s = time.monotonic()
        with self._lock:
            self._longest_s = max(self._longest_s, now_s - self._heard_s.get(place, now_s))
            self._heard_s[place] = now_s

    def take(self) -> float:
        """The longest silence since the last call, or since the first answer, including one that still lasts."""
        now_s = time.monotonic()
        with self._lock:
            found_s = max([self._longest_s, *(now_s - heard_s for heard_s in self._heard_s.values())])
            self._longest_s = 0.0
        return found_s


class Worker(ABC):
    """A client in a thread that repeats `step` until `stop`. `failure` is what ended it earlier."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(2 * PATIENCE_S)
        if error is None:
            assert not self._thread.is_alive(), f"{self} hangs"
            assert self.failure is None, repr(self.failure)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.step()
            self.finish()
        except (KafkaException, AssertionError) as failure:
            self.failure = failure

    @abstractmethod
    def step(self) -> None:
        """Do some work."""

    @abstractmethod
    def finish(self) -> None:
        """Complete all work, and close the client."""


class Stream(Worker):
    """An idempotent producer with acks=all, which sends the next number to each partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self.acknowledged: dict[int, list[tuple[int | None, int]]] = defaultdict(list)
        """By partition. The offset is None if librdkafka does not know it: the broker has refused a retry as a
        duplicate of a batch that it no longer remembers."""
        self.silence = Silence()
        """Between two acknowledgements of a partition."""
        self._topic = topic
        self._number = 0
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 5, **QUIET}
        )

    def step(self) -> None:
        self._number += 1
        for partition in range(PARTITIONS):
            self._producer.produce(self._topic, b"%d" % self._number, partition=partition, on_delivery=self._delivered)
        self._producer.poll(0.005)

    def _delivered(self, error: KafkaError | None, record: Message) -> None:
        assert error is None, error
        self.silence.heard(record.partition())
        self.acknowledged[record.partition()].append((record.offset(), int(record.value())))

    def finish(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0, "not all records were acknowledged"

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def check(self, stored: dict[int, list[Row]]) -> None:
        """Every acknowledged record is stored at its offset."""
        for partition, rows in self.acknowledged.items():
            place, found = f"{self._topic}-{partition}", stored[partition]
            lost = sorted({number for _, number in rows} - {number for _, number in found})
            assert not lost, f"{place} ends at {found[-1:]} and has lost {lost}"
            elsewhere = {row for row in rows if row[0] is not None} - set(found)
            assert not elsewhere, f"{place}: not stored where it was acknowledged: {elsewhere}"


class Group(Worker):
    """A consumer that is alone in its group. It commits every so often, and checks that no commit is forgotten."""

    def __init__(self, bootstrap: str, topic: str, name: str, settings: dict[str, Any]) -> None:
        super().__init__()
        self.name = name
        self.read: dict[int, list[Row]] = defaultdict(list)
        self.assignments = 0
        self._committed: dict[int, int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **settings,
                **QUIET,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._assigned)

    def _assigned(self, _consumer: Consumer, _places: list[TopicPartition]) -> None:
        self.assignments += 1

    def step(self) -> None:
        for record in self._consumer.consume(COMMIT_EVERY, 0.5):
            if record.error() is None:
                self.read[record.partition()].append((record.offset(), int(record.value())))
        self._commit()

    def _commit(self) -> None:
        """Commit what was read. While the coordinator moves, a commit may be refused; the next one makes up for it."""
        try:
            done = self._consumer.commit(asynchronous=False)
        except KafkaException:
            return
        for place in done or ():
            assert place.error is None, place.error
            if place.offset >= 0:  # something of this partition was read
                before = self._committed.get(place.partition, 0)
                assert place.offset >= before, f"{self.name} commits {place.offset} after {before}"
                self._committed[place.partition] = place.offset

    def finish(self) -> None:
        """Read what is left."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and not self._is_at_end():
            self.step()
        self._commit()
        kept = self._consumer.committed([TopicPartition(t.topic, t.partition) for t in self._assignment()], PATIENCE_S)
        for place in kept:
            assert place.offset >= self._committed[place.partition], f"{self.name} has lost a commit"
        self._consumer.close()

    def _assignment(self) -> list[TopicPartition]:
        return list(self._consumer.assignment())

    def _is_at_end(self) -> bool:
        ends = (self._consumer.get_watermark_offsets(place, PATIENCE_S)[1] for place in self._assignment())
        return all(
            (self.read[place.partition] or [(-1, 0)])[-1][0] >= end - 1
            for place, end in zip(self._assignment(), ends, strict=True)
        )

    def check(self, stored: dict[int, list[Row]]) -> None:
        """The group was assigned its partitions once, and has read every record once, in order."""
        assert self.assignments == 1, f"{self.name} was assigned its partitions {self.assignments} times"
        for partition, rows in stored.items():
            read = self.read[partition]
            missing, again = sorted(set(rows) - set(read)), sorted((Counter(read) - Counter(set(read))).keys())
            assert read == rows, f"{self.name}, partition {partition}: not read: {missing}; read again: {again}"


class Transactions(Worker):
    """A producer of transactions over all partitions, some of which are aborted. `hold` keeps one open."""

    def __init__(self, bootstrap: str, topic: str, name: str) -> None:
        super().__init__()
        self.committed: list[int] = []
        self._topic = topic
        self._number = 0
        self._lock = threading.Lock()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": 120_000, **QUIET}
        )
        self._producer.init_transactions(PATIENCE_S)

    def step(self) -> None:
        with self._lock:
            self._begin()
            self._end()
        self._stopping.wait(0.05)

    def open(self) -> None:
        """Leave a transaction open until `close`."""
        self._lock.acquire()
        self._begin()
        assert self._producer.flush(PATIENCE_S) == 0

    def close(self) -> None:
        """Send more records in the open transaction, and end it."""
        self._send()
        self._end()
        self._lock.release()

    def _begin(self) -> None:
        self._number += 1
        self._producer.begin_transaction()
        self._send()

    def _send(self) -> None:
        for partition in range(PARTITIONS):
            self._producer.produce(self._topic, b"%d" % self._number, partition=partition)

    def _end(self) -> None:
        """End the transaction. A transaction that the broker wants to have aborted is aborted."""
        is_wanted = self._number % ABORTED_EVERY != 0
        self._producer.flush(PATIENCE_S)
        while True:
            try:
                (self._producer.commit_transaction if is_wanted else self._producer.abort_transaction)(PATIENCE_S)
            except KafkaException as failure:
                error = failure.args[0]
                if error.txn_requires_abort():
                    is_wanted = False
                elif not error.retriable():
                    raise
                continue
            break
        if is_wanted:
            self.committed.append(self._number)

    def finish(self) -> None:
        return

    def check(self, stored: dict[int, list[Row]]) -> None:
        """All records of the committed transactions are visible, in order, and no others."""
        for partition in range(PARTITIONS):
            numbers = [number for _, number in stored[partition]]
            seen = list(dict.fromkeys(numbers))
            assert numbers == sorted(numbers), f"{self._topic}-{partition} is out of order"
            assert seen == self.committed, f"{self._topic}-{partition}: {set(seen) ^ set(self.committed)}"


def read_all(bootstrap: str, topic: str, *, prefix: str = "", at_least: int = 0) -> dict[int, list[Row]]:
    """All committed records of a topic, by partition, whose values are numbers behind a prefix. Waits until there are
    `at_least` records."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader of everything",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    with contextlib.closing(consumer):
        deadline_s = time.monotonic() + 3 * PATIENCE_S
        found: dict[int, list[Row]] = {partition: [] for partition in range(PARTITIONS)}
        nexts = dict.fromkeys(found, 0)
        for partition, rows in found.items():
            nexts[partition] = _read_on(consumer, TopicPartition(topic, partition, 0), rows, prefix)
        while sum(map(len, found.values())) < at_least and time.monotonic() < deadline_s:
            for partition, rows in found.items():
                place = TopicPartition(topic, partition, nexts[partition])
                nexts[partition] = _read_on(consumer, place, rows, prefix)
    return found


def _read_on(consumer: Consumer, place: TopicPartition, rows: list[Row], prefix: str) -> int:
    """Read a partition from an offset to its end. Returns the offset at which the reading ended."""
    end = consumer.get_watermark_offsets(place, PATIENCE_S)[1]  # a new leader answers when it knows it
    consumer.assign([place])
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        for record in consumer.consume(1000, 0.5):
            error = record.error()
            if error is None:
                rows.append((record.offset(), int(record.value().decode().removeprefix(prefix))))
                continue
            assert error.code() == KafkaError._PARTITION_EOF, error
            if record.offset() >= end:  # a new leader may not know at first how far it was acknowledged
                return int(record.offset())
    raise AssertionError(f"{place.topic}-{place.partition} cannot be read up to its end")
