"""A mixed load at a fixed rate: the threads of bench/endurance.py.

Every thread repeats a step. The load contains idempotent and transactional producers, groups of both protocols and a
share group whose members come and go, a compacted topic, new and deleted topics, admin requests and new connections.
"""

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from bench import shares
from bench.control import TIMEOUT_S, create_topic, delete_topic, end_offsets, fresh_name
from bench.joining import find_coordinator_of
from bench.ledger import Ledger
from bench.librdkafka import payloads
from bench.measure import LoadError
from bench.raw import Connection, frame
from bench.target import Target
from kpybroker.wire.rpc import api_versions

PARTITIONS = 4
CLASSIC, CONSUMER, SHARE, TRANSACTIONS, COMPACTED = "classic", "consumer", "share", "transactions", "compacted"
CODECS = {CLASSIC: "none", CONSUMER: "lz4", SHARE: "zstd"}
"""The codec of each topic; a group of the same name reads it."""
ROLLING = {"segment.bytes": str(1 << 20), "file.delete.delay.ms": "1000"}
DELETED = {**ROLLING, "retention.bytes": str(16 << 20)}
CLEANED = {**ROLLING, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
CONFIGS = {CLASSIC: DELETED, CONSUMER: DELETED, SHARE: DELETED, TRANSACTIONS: DELETED, COMPACTED: CLEANED}
KEYS = 2000
IN_TRANSACTION = 20
ABORTED = b"aborted"
LIFE_S = (15.0, 60.0)
"""How long a member of a group stays."""
BEAT_S = 5.0
FAILURES = (KafkaException, LoadError, OSError)


class Mixed:
    """The whole load: the work that it has done, and every error of a client."""

    def __init__(self, target: Target, rate: int) -> None:
        """rate: steps per second of each producer."""
        self.target, self.rate = target, rate
        self.done: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.ledger = Ledger()
        self.newest: dict[bytes, bytes | None] = {}
        """The last acknowledged value of each key of the compacted topic; None after a tombstone."""
        self.writing_ends, self.reading_ends = threading.Event(), threading.Event()
        self._writers: list[threading.Thread] = []
        self._readers: list[threading.Thread] = []
        self._producers: list[Producer] = []
        self._admin = AdminClient(self.settings("admin"))
        self._values = payloads(1000)
        self._numbers: Counter[tuple[str, int]] = Counter()
        self._chance = random.Random(1)

    def settings(self, who: str) -> dict[str, object]:
        """The settings of every librdkafka client."""
        noted = {"error_cb": lambda error: self.failed(who, error), "log_level": 2}
        return {"bootstrap.servers": self.target.bootstrap, **noted}

    def failed(self, who: str, error: object) -> None:
        self.errors[f"{who}: {error}"] += 1

    def begin(self) -> None:
        """Create the topics and start all threads."""
        new = [NewTopic(topic, PARTITIONS, 1, config=config) for topic, config in CONFIGS.items()]
        for created in self._admin.create_topics(new, operation_timeout=TIMEOUT_S).values():
            created.result(TIMEOUT_S)
        shares.begin_at_earliest(self.target, SHARE)
        find_coordinator_of(self.target, SHARE)
        for topic, codec in CODECS.items():
            self._write(f"{topic} producer", self._producing(topic, codec), 1 / self.rate)
        self._write("compacted producer", self._compacting(), 1 / self.rate)
        self._write("transactional producer", self._transacting(), 0.1)
        self._write("topics", self._topic, 3.0)
        self._write("admin", self._ask, 0.5)
        self._write("connections", self._connect, 0.2)
        for protocol in (CLASSIC, CLASSIC, CONSUMER, CONSUMER):
            self._read(f"{protocol} member", lambda protocol=protocol: self._live(protocol))
        self._read("share member", self._share)
        self._read("read_committed consumer", self._read_committed)

    def end(self, patience_s: float) -> None:
        """End the writers, wait until everything is read, and end the readers."""
        self.writing_ends.set()
        for thread in self._writers:
            thread.join()
        for producer in self._producers:
            if left := producer.flush(TIMEOUT_S):
                self.failed("producer", f"{left} records were not acknowledged")
        deadline = time.monotonic() + patience_s
        while self.ledger.unread() and time.monotonic() < deadline:
            self.reading_ends.wait(0.5)
        self.reading_ends.set()
        for thread in self._readers:
            thread.join()

    def lost(self) -> list[str]:
        """All differences between the records that were acknowledged, that are in the logs, and that were read."""
        found = [*self.ledger.wrong, *self.ledger.unread()]
        for topic in CODECS:
            for partition, end in enumerate(end_offsets(self.target, topic, PARTITIONS)):
                if end != (count := self.ledger.acknowledged[topic, partition]):
                    found.append(f"{topic}-{partition}: {count:,} records were acknowledged, the log ends at {end:,}")
        kept: dict[bytes, bytes | None] = {}
        for message in self._whole(COMPACTED):
            kept[message.key() or b""] = message.value()
            self.done["compacted records left"] += 1
        different = sum(kept.get(key) != value for key, value in self.newest.items())
        return found + ([f"{COMPACTED}: {different} keys do not have their last value"] if different else [])

    def deleted(self) -> int:
        """The number of records that retention has deleted."""
        asked = {TopicPartition(topic, each): OffsetSpec.earliest() for topic in CODECS for each in range(PARTITIONS)}
        return sum(answer.result(TIMEOUT_S).offset for answer in self._admin.list_offsets(asked).values())

    def _write(self, name: str, step: Callable[[], None], period_s: float) -> None:
        self._writers.append(self._thread(name, step, period_s, self.writing_ends))

    def _read(self, name: str, step: Callable[[], None]) -> None:
        self._readers.append(self._thread(name, step, 0.0, self.reading_ends))

    def _thread(self, name: str, step: Callable[[], None], period_s: float, ends: threading.Event) -> threading.Thread:
        def run() -> None:
            due = time.monotonic()
            try:
                while not ends.wait(max(due - time.monotonic(), 0.0)):
                    due = max(due + period_s, time.monotonic() - 1.0)  # a late thread does not catch up for long
                    try:
                        step()
                    except FAILURES as error:
                        self.failed(name, error)
                        due = time.monotonic() + 1.0
            finally:
                if not ends.is_set():
                    self.failed(name, "a bug ended this thread")

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def _producing(self, topic: str, codec: str) -> Callable[[], None]:
        """Steps that send a few numbered records to each partition."""
        settings = {"compression.type": codec, "enable.idempotence": True, "linger.ms": 0}
        producer = Producer({**self.settings(f"{topic} producer"), **settings})
        self._producers.append(producer)

        def step() -> None:
            for partition in range(PARTITIONS):
                for _ in range(2):
                    producer.produce(topic, self._value(topic, partition), partition=partition, on_delivery=self._sent)
            producer.poll(0)

        return step

    def _value(self, topic: str, partition: int) -> bytes:
        number = self._numbers[topic, partition]
        self._numbers[topic, partition] += 1
        return b"%d %b" % (number, self._values[number % len(self._values)])

    def _sent(self, error: KafkaError | None, message: Message) -> None:
        topic, partition = message.topic() or "", message.partition() or 0
        if error is not None:
            self.failed(f"{topic} producer", error)
            return
        self.done[f"records written, {topic}"] += 1
        self.ledger.acknowledge(topic, partition)

    def _compacting(self) -> Callable[[], None]:
        """Steps that send new values and tombstones of a few keys."""
        producer = Producer({**self.settings("compacted producer"), "enable.idempotence": True, "linger.ms": 0})
        self._producers.append(producer)

        def sent(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed("compacted producer", error)
                return
            self.newest[message.key() or b""] = message.value()
            self.done["records written, compacted"] += 1

        def step() -> None:
            for _ in range(5):
                key = self._chance.randrange(KEYS)
                value = None if self._chance.random() < 0.05 else self._chance.choice(self._values)
                producer.produce(COMPACTED, value, b"%d" % key, key % PARTITIONS, sent)
            producer.poll(0)

        return step

    def _transacting(self) -> Callable[[], None]:
        """Steps that each commit or abort a transaction in all partitions, and commit an offset in it."""
        producer = Producer({**self.settings("transactional producer"), "transactional.id": "endurance"})
        producer.init_transactions(TIMEOUT_S)

        def step() -> None:
            commits = self._chance.random() < 0.8
            producer.begin_transaction()
            for number in range(IN_TRANSACTION):
                partition = number % PARTITIONS
                value = self._value(TRANSACTIONS, partition) if commits else ABORTED
                producer.produce(TRANSACTIONS, value, partition=partition)
            if not commits:
                producer.flush(TIMEOUT_S)
                producer.abort_transaction(TIMEOUT_S)
                self.done["transactions aborted"] += 1
                return
            producer.commit_transaction(TIMEOUT_S)
            self.done["transactions committed"] += 1
            for partition in range(PARTITIONS):
                self.ledger.acknowledge(TRANSACTIONS, partition, IN_TRANSACTION // PARTITIONS)

        return step

    def _topic(self) -> None:
        """Create a topic, write to it with a new producer, and delete it."""
        topic = fresh_name("endurance")
        create_topic(self.target, topic, 3)
        producer = Producer(self.settings("topics"))
        for number in range(30):
            producer.produce(topic, b"x" * 100, partition=number % 3)
        if left := producer.flush(TIMEOUT_S):
            self.failed("topics", f"{left} records were not acknowledged")
        delete_topic(self.target, topic)
        self.done["topics created and deleted"] += 1

    def _ask(self) -> None:
        topic = ConfigResource(ResourceType.TOPIC, CLASSIC)
        self._admin.list_topics(timeout=TIMEOUT_S)
        self._admin.describe_cluster().result(TIMEOUT_S)
        self._admin.list_consumer_groups().result(TIMEOUT_S)
        self._admin.describe_consumer_groups([CLASSIC])[CLASSIC].result(TIMEOUT_S)
        self._admin.describe_configs([topic])[topic].result(TIMEOUT_S)
        self.deleted()
        self.done["admin requests"] += 6

    def _connect(self) -> None:
        """Open two connections; one ends in the middle of a request."""
        request = frame(18, 3, api_versions.Request(client_software_name="bench", client_software_version="1"))
        with Connection(self.target) as whole, Connection(self.target) as half:
            whole.socket.sendall(request)
            half.socket.sendall(request[: len(request) // 2])
            whole.reply()
            half.socket.shutdown(socket.SHUT_RDWR)
        self.done["short connections"] += 2

    def _live(self, protocol: str) -> None:
        """The life of one member of the group of this protocol."""
        settings = {"group.id": protocol, "group.protocol": protocol, "auto.offset.reset": "earliest"}
        with closing(Consumer({**self.settings(f"{protocol} member"), **settings})) as consumer:
            consumer.subscribe([protocol])
            self._read_numbers(consumer, protocol, time.monotonic() + random.uniform(*LIFE_S))
        self.done[f"lives of members, {protocol}"] += 1

    def _read_committed(self) -> None:
        settings = {"group.id": TRANSACTIONS, "isolation.level": "read_committed", "enable.auto.commit": False}
        with closing(Consumer({**self.settings("read_committed consumer"), **settings})) as consumer:
            consumer.assign([TopicPartition(TRANSACTIONS, each, OFFSET_BEGINNING) for each in range(PARTITIONS)])
            self._read_numbers(consumer, TRANSACTIONS, float("inf"))

    def _read_numbers(self, consumer: Consumer, topic: str, until_s: float) -> None:
        """Read numbered records until the time or the end of the run."""
        while time.monotonic() < until_s and not self.reading_ends.is_set():
            for message in consumer.consume(500, 0.2):
                value = message.value() or b""
                if (error := message.error()) is not None:
                    self.failed(f"{topic} consumer", error)
                elif value == ABORTED:
                    self.ledger.complain(f"{topic}: an aborted record was read")
                else:
                    number = int(value.partition(b" ")[0])
                    self.ledger.found(topic, message.partition() or 0, number, number)
                    self.done[f"records read, {topic}"] += 1

    def _share(self) -> None:
        """The life of one member of the share group."""
        member = shares.Consumer(self.target, SHARE, SHARE)
        until_s, beat_s = time.monotonic() + random.uniform(*LIFE_S), 0.0
        acquired: shares.Acquired = {}
        try:
            while time.monotonic() < until_s and not self.reading_ends.is_set():
                if time.monotonic() > beat_s:
                    member.beat()
                    beat_s = time.monotonic() + (BEAT_S if len(member.assigned) == PARTITIONS else 0.2)
                if len(member.assigned) < PARTITIONS:
                    self.reading_ends.wait(0.2)
                    continue
                acquired = member.fetch(acquired)
                for (_, partition), ranges in acquired.items():
                    for first, last in ranges:
                        self.ledger.found(SHARE, partition, first, last)
                self.done[f"records read, {SHARE}"] += shares.count(acquired)
            if acquired:
                member.acknowledge(acquired)
        finally:
            member.leave()
        self.done[f"lives of members, {SHARE}"] += 1

    def _whole(self, topic: str) -> Iterator[Message]:
        """All records of a topic that nobody writes to any more."""
        ends = end_offsets(self.target, topic, PARTITIONS)
        with closing(Consumer({**self.settings(topic), "group.id": topic, "enable.partition.eof": True})) as consumer:
            consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(PARTITIONS)])
            left = {partition for partition, end in enumerate(ends) if end}
            while left:
                for message in consumer.consume(1000, TIMEOUT_S):
                    error = message.error()
                    if error is None:
                        yield message
                    elif error.code() == KafkaError._PARTITION_EOF:
                        left.discard(message.partition() or 0)
                    else:
                        raise KafkaException(error)
