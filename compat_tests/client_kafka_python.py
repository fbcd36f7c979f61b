"""The adapter for kafka-python."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import kafka
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from compat_tests.vocabulary import (
    LARGEST_BYTES,
    Acks,
    Codec,
    Done,
    Isolation,
    Message,
    Place,
    Placed,
    Received,
    Refused,
    Strategy,
)

STRATEGIES = {"eager": RangePartitionAssignor, "cooperative": CooperativeStickyAssignor}


class KafkaPythonProducer:
    """kafka-python's producer with its sender thread."""

    def __init__(self, producer: Any, patience_s: float) -> None:
        self._producer = producer
        self._patience_s = patience_s

    def send(self, topic: str, message: Message, done: Done) -> None:
        try:
            future = self._producer.send(
                topic,
                value=message.value,
                key=message.key,
                headers=list(message.headers),
                partition=message.partition,
                timestamp_ms=message.timestamp_ms,
            )
        except KafkaError as refusal:
            done(Refused(repr(refusal)))
            return
        future.add_callback(lambda sent: done(Placed(sent.partition, -1 if sent.offset is None else sent.offset)))
        future.add_errback(lambda error: done(Refused(repr(error))))

    def flush(self, timeout_s: float) -> None:
        try:
            self._producer.flush(timeout_s)
        except KafkaError as refusal:
            raise Refused(repr(refusal)) from refusal

    def close(self) -> None:
        self._producer.close(timeout=1)


class _Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, consumer: "KafkaPythonConsumer") -> None:
        self._consumer = consumer

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._consumer.assignments += 1


class KafkaPythonConsumer:
    """kafka-python's consumer."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.assignments = 0

    def subscribe(self, topics: Sequence[str]) -> None:
        # in this version, a leader that assigns before it knows a topic may never assign again, on any broker
        for topic in topics:
            self._consumer.partitions_for_topic(topic)
        self._consumer.subscribe(list(topics), listener=_Listener(self))

    def assign(self, starts: Mapping[Place, int | Literal["earliest", "latest"]]) -> None:
        self._consumer.assign([TopicPartition(*place) for place in starts])
        for place, start in starts.items():
            if start == "earliest":
                self._consumer.seek_to_beginning(TopicPartition(*place))
            elif start == "latest":
                self._consumer.seek_to_end(TopicPartition(*place))
            else:
                self._consumer.seek(TopicPartition(*place), start)

    def assignment(self) -> set[Place]:
        return {(at.topic, at.partition) for at in self._consumer.assignment()}

    def poll(self, timeout_s: float) -> list[Received]:
        try:
            found = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        except KafkaError as refusal:
            raise Refused(repr(refusal)) from refusal
        return [
            Received(
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                timestamp_ms=record.timestamp,
                key=record.key,
                value=record.value,
                headers=tuple((name, value) for name, value in record.headers),
            )
            for records in found.values()
            for record in records
        ]

    def commit(self) -> None:
        try:
            self._consumer.commit()
        except KafkaError as refusal:
            raise Refused(repr(refusal)) from refusal

    def committed(self, place: Place) -> int | None:
        found = self._consumer.committed(TopicPartition(*place))
        return None if found is None or found < 0 else int(found)

    def position(self, place: Place) -> int:
        return int(self._consumer.position(TopicPartition(*place)))

    def seek(self, place: Place, offset: int) -> None:
        self._consumer.seek(TopicPartition(*place), offset)

    def pause(self, place: Place) -> None:
        self._consumer.pause(TopicPartition(*place))

    def resume(self, place: Place) -> None:
        self._consumer.resume(TopicPartition(*place))

    def offset_at(self, place: Place, timestamp_ms: int) -> int | None:
        found = self._consumer.offsets_for_times({TopicPartition(*place): timestamp_ms})[TopicPartition(*place)]
        return None if found is None else int(found.offset)

    @property
    def membership(self) -> Any:
        """The group metadata that a transaction needs."""
        return self._consumer.group_metadata()

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class KafkaPythonTransactional:
    """kafka-python's transactional producer."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._call(producer.init_transactions)

    def _call(self, call: Callable[..., object], *args: object) -> None:
        try:
            call(*args)
        except KafkaError as refusal:
            raise Refused(f"{type(refusal).__name__} {refusal!r}") from refusal

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, message: Message) -> None:
        try:
            self._producer.send(
                topic,
                value=message.value,
                key=message.key,
                partition=message.partition,
                headers=list(message.headers),
            )
        except KafkaError as refusal:
            raise Refused(f"{type(refusal).__name__} {refusal!r}") from refusal

    def flush(self) -> None:
        self._call(self._producer.flush, 30)

    def send_offsets(self, offsets: Mapping[Place, int], consumer: "KafkaPythonConsumer", group: str) -> None:
        places = {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}
        self._call(self._producer.send_offsets_to_transaction, places, consumer.membership)

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=1)


class KafkaPython:
    """Pure Python, with an independent implementation of the protocol."""

    name = "kafka-python"
    version = str(kafka.__version__)
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
    ) -> KafkaPythonProducer:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            client_id=f"kafka-python-{threading.get_ident()}",
            compression_type=None if codec == "none" else codec,
            acks="all" if acks in ("all", "idempotent") else int(acks),
            enable_idempotence=acks == "idempotent",
            linger_ms=linger_ms,
            batch_size=batch_bytes,
            max_request_size=LARGEST_BYTES,
            delivery_timeout_ms=int(patience_s * 1000),
            request_timeout_ms=min(10_000, int(patience_s * 1000) - linger_ms - 1),
            retry_backoff_ms=50,
            reconnect_backoff_max_ms=500,
        )
        return KafkaPythonProducer(producer, patience_s)

    def can_send(self, message: Message) -> bool:
        something = message.key is not None or message.value is not None
        return something and all(value is not None for _, value in message.headers)

    def consumer(
        self,
        bootstrap: str,
        *,
        group: str | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        strategy: Strategy = "eager",
        instance: str | None = None,
        isolation: Isolation = "read_uncommitted",
    ) -> KafkaPythonConsumer:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            group_instance_id=instance,
            auto_offset_reset=start,
            enable_auto_commit=False,
            isolation_level=isolation,
            partition_assignment_strategy=[STRATEGIES[strategy]],
            session_timeout_ms=6000,
            heartbeat_interval_ms=300,
            max_partition_fetch_bytes=LARGEST_BYTES,
            fetch_max_wait_ms=100,
            request_timeout_ms=10_000,
            max_poll_interval_ms=9_000,
            metadata_max_age_ms=2_000,
            reconnect_backoff_max_ms=500,
        )
        return KafkaPythonConsumer(consumer)

    def transactional(
        self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000
    ) -> KafkaPythonTransactional:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            request_timeout_ms=10_000,
            retry_backoff_ms=50,
            reconnect_backoff_max_ms=500,
        )
        return KafkaPythonTransactional(producer)
