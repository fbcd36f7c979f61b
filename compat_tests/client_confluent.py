"""The adapter for confluent-kafka, which uses librdkafka."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaException, TopicPartition

from compat_tests.vocabulary import (
    LARGEST_BYTES,
    Acks,
    Codec,
    Done,
    Header,
    Isolation,
    Message,
    Place,
    Placed,
    Received,
    Refused,
    Strategy,
)

CALL_TIMEOUT_S = 30.0
STRATEGIES = {"eager": "range", "cooperative": "cooperative-sticky"}
STARTS = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}


def _headers(found: Any) -> tuple[Header, ...]:
    return tuple((name, value) for name, value in found or ())


class ConfluentProducer:
    """librdkafka's producer; delivery reports are processed whenever something is sent or flushed."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._producer = confluent_kafka.Producer(settings)

    def send(self, topic: str, message: Message, done: Done) -> None:
        def report(error: Any, sent: Any) -> None:
            if error is not None:
                done(Refused(str(error)))
            else:
                done(Placed(sent.partition(), -1 if sent.offset() is None or sent.offset() < 0 else sent.offset()))

        options: dict[str, Any] = {"key": message.key, "on_delivery": report}
        if message.headers:
            options["headers"] = list(message.headers)
        if message.timestamp_ms is not None:
            options["timestamp"] = message.timestamp_ms
        if message.partition is not None:
            options["partition"] = message.partition
        while True:
            try:
                self._producer.produce(topic, message.value, **options)
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)

    def flush(self, timeout_s: float) -> None:
        left = self._producer.flush(timeout_s)
        if left:
            raise Refused(f"{left} messages without a response after {timeout_s} s")

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(1)


class ConfluentConsumer:
    """librdkafka's consumer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._consumer = confluent_kafka.Consumer(settings)
        self.assignments = 0

    def subscribe(self, topics: Sequence[str]) -> None:
        def assigned(_consumer: Any, _partitions: Any) -> None:
            self.assignments += 1

        self._consumer.subscribe(list(topics), on_assign=assigned)

    def assign(self, starts: Mapping[Place, int | Literal["earliest", "latest"]]) -> None:
        self._consumer.assign(
            [
                TopicPartition(topic, partition, STARTS[start] if isinstance(start, str) else start)
                for (topic, partition), start in starts.items()
            ]
        )

    def assignment(self) -> set[Place]:
        return {(at.topic, at.partition) for at in self._consumer.assignment()}

    def poll(self, timeout_s: float) -> list[Received]:
        found = self._consumer.consume(500, timeout_s) if timeout_s > 0.05 else self._consumer.consume(500, 0.05)
        received = []
        for message in found:
            error = message.error()
            if error is not None:
                if error.fatal() or not error.retriable():
                    if error.code() in (
                        confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
                        confluent_kafka.KafkaError._TRANSPORT,
                        confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
                    ):
                        continue
                    raise Refused(str(error))
                continue
            received.append(
                Received(
                    topic=message.topic(),
                    partition=message.partition(),
                    offset=message.offset(),
                    timestamp_ms=message.timestamp()[1],
                    key=message.key(),
                    value=message.value(),
                    headers=_headers(message.headers()),
                )
            )
        return received

    def commit(self) -> None:
        try:
            for at in self._consumer.commit(asynchronous=False) or []:
                if at.error is not None:
                    raise Refused(str(at.error))
        except KafkaException as refusal:
            if refusal.args[0].code() != confluent_kafka.KafkaError._NO_OFFSET:
                raise Refused(str(refusal)) from refusal

    def committed(self, place: Place) -> int | None:
        [found] = self._consumer.committed([TopicPartition(*place)], timeout=CALL_TIMEOUT_S)
        if found.error is not None:
            raise Refused(str(found.error))
        return None if found.offset < 0 else int(found.offset)

    def position(self, place: Place) -> int:
        [found] = self._consumer.position([TopicPartition(*place)])
        return int(found.offset)

    def seek(self, place: Place, offset: int) -> None:
        self._consumer.seek(TopicPartition(*place, offset))

    def pause(self, place: Place) -> None:
        self._consumer.pause([TopicPartition(*place)])

    def resume(self, place: Place) -> None:
        self._consumer.resume([TopicPartition(*place)])

    def offset_at(self, place: Place, timestamp_ms: int) -> int | None:
        [found] = self._consumer.offsets_for_times([TopicPartition(*place, timestamp_ms)], timeout=CALL_TIMEOUT_S)
        if found.error is not None:
            raise Refused(str(found.error))
        return None if found.offset < 0 else int(found.offset)

    @property
    def membership(self) -> Any:
        """The group metadata that a transaction needs."""
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        self._consumer.close()


class ConfluentTransactional:
    """librdkafka's transactional producer. Retriable errors are retried, as its manual requires."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._producer = confluent_kafka.Producer(settings)
        self._again(lambda: self._producer.init_transactions(CALL_TIMEOUT_S))

    def _again(self, call: Callable[[], object]) -> None:
        deadline = time.monotonic() + 2 * CALL_TIMEOUT_S
        while True:
            try:
                call()
                return
            except KafkaException as refusal:
                error = refusal.args[0]
                if not error.retriable() or time.monotonic() > deadline:
                    raise Refused(f"{error.name()} {error}") from refusal

    def begin(self) -> None:
        self._again(self._producer.begin_transaction)

    def send(self, topic: str, message: Message) -> None:
        options: dict[str, Any] = {} if message.partition is None else {"partition": message.partition}
        if message.headers:
            options["headers"] = list(message.headers)
        try:
            self._producer.produce(topic, message.value, key=message.key, **options)
        except KafkaException as refusal:
            raise Refused(f"{refusal.args[0].name()} {refusal}") from refusal
        self._producer.poll(0)

    def flush(self) -> None:
        if self._producer.flush(CALL_TIMEOUT_S):
            raise Refused("some messages have no response yet")

    def send_offsets(self, offsets: Mapping[Place, int], consumer: "ConfluentConsumer", group: str) -> None:
        places = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        membership = consumer.membership
        self._again(lambda: self._producer.send_offsets_to_transaction(places, membership, CALL_TIMEOUT_S))

    def commit(self) -> None:
        self._again(lambda: self._producer.commit_transaction(CALL_TIMEOUT_S))

    def abort(self) -> None:
        self._again(lambda: self._producer.abort_transaction(CALL_TIMEOUT_S))

    def close(self) -> None:
        self._producer.purge()
        with contextlib.suppress(KafkaException):  # flush reports the error of a producer that was fenced
            self._producer.flush(1)


class Confluent:
    """The client for which all combinations of choices are tested."""

    name = "confluent-kafka"
    version = (
        f"{confluent_kafka.version()[0] if isinstance(confluent_kafka.version(), tuple) else confluent_kafka.version()}"
    )
    strategies: tuple[Strategy, ...] = ("eager", "cooperative")

    def producer(
        self,
        bootstrap: str,
        *,
        codec: Codec = "none",
        acks: Acks = "all",
        linger_ms: int = 5,
        patience_s: float = 60,
        batch_bytes: int = 1 << 20,
    ) -> ConfluentProducer:
        return ConfluentProducer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "acks": "all" if acks == "idempotent" else acks,
                "enable.idempotence": acks == "idempotent",
                "linger.ms": linger_ms,
                "message.max.bytes": LARGEST_BYTES,
                "batch.size": batch_bytes,
                "message.timeout.ms": int(patience_s * 1000),
                "retry.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "log_level": 2,
            }
        )

    def can_send(self, message: Message) -> bool:
        return True

    def consumer(
        self,
        bootstrap: str,
        *,
        group: str | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        strategy: Strategy = "eager",
        instance: str | None = None,
        isolation: Isolation = "read_uncommitted",
    ) -> ConfluentConsumer:
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group or f"none-{time.monotonic_ns()}",
            "auto.offset.reset": start,
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "partition.assignment.strategy": STRATEGIES[strategy],
            "session.timeout.ms": 6000,
            "max.poll.interval.ms": 9000,
            "heartbeat.interval.ms": 300,
            "fetch.message.max.bytes": LARGEST_BYTES,
            "fetch.max.bytes": 4 * LARGEST_BYTES,
            "receive.message.max.bytes": 5 * LARGEST_BYTES,
            "fetch.wait.max.ms": 100,
            "reconnect.backoff.max.ms": 500,
            "allow.auto.create.topics": True,
            "log_level": 2,
        }
        if instance is not None:
            settings["group.instance.id"] = instance
        return ConfluentConsumer(settings)

    def transactional(
        self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000
    ) -> ConfluentTransactional:
        return ConfluentTransactional(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "retry.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
