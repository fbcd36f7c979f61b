"""A load with librdkafka: idempotent producers that number their records, and group members that commit."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from chaos.history import SOMEWHERE, UNKNOWN, Commit, History, Place, key_of

IN_FLIGHT_MAX = 5000
VALUE_BYTES = 100
TICK_S = 0.01
COMMIT_EVERY_S = 0.3
GIVE_UP_S = 30.0
"""How long a producer may take to give its records up after a fatal error."""
FOR_EVER_MS = "900000"
Settings = Mapping[str, str]
QUICK = {"reconnect.backoff.max.ms": "500", "socket.timeout.ms": "5000", "log_level": "2"}


def value_of(producer: int, number: int) -> bytes:
    return f"{producer} {number} ".encode().ljust(VALUE_BYTES, b".")


def key_in(value: bytes) -> int:
    """The key of a record, from its value."""
    producer, number, _ = value.split(b" ", 2)
    return key_of(int(producer), int(number))


class LastingProducer:
    """A producer that is replaced after a fatal error, as an application would do it. The history notes the error."""

    def __init__(self, history: History, name: str, settings: Settings) -> None:
        self._history = history
        self._name = name
        self._settings = dict(settings)
        self._current = Producer(self._settings)

    def produce(self, place: Place, value: bytes, on_delivery: Callable[[KafkaError | None, Message], None]) -> None:
        """Queue a record. Raises KafkaException, BufferError."""
        self._current.produce(place.topic, value, partition=place.partition, on_delivery=on_delivery)

    def poll(self, timeout_s: float) -> bool:
        """Call the callbacks that are due. Returns False after a fatal error: the callbacks of all records were called,
        most with an error, and a new producer has begun."""
        return self._is_sound(lambda: self._current.poll(timeout_s))

    def flush(self, timeout_s: float) -> tuple[bool, int]:
        """Wait until all records are acknowledged or given up. Returns whether there was no fatal error, and the number
        of records that are neither."""
        left = 0

        def flush() -> None:
            nonlocal left
            left = self._current.flush(timeout_s)

        return self._is_sound(flush), left

    def _is_sound(self, work: Callable[[], object]) -> bool:
        try:
            work()
        except KafkaException as raised:  # the client raises fatal errors, and calls no callback for them
            error = raised.args[0]
            if not error.fatal():
                raise
            self._history.fall(f"{self._name}: {error.str()}")
            self._current.flush(GIVE_UP_S)
            self._current = Producer(self._settings)
            return False
        return True


class Production(threading.Thread):
    """Sends `per_second` records a second to all partitions in turn until `finish`. settings: for TLS and the login."""

    def __init__(
        self,
        history: History,
        bootstrap: str,
        places: list[Place],
        number: int,
        per_second: float,
        settings: Settings,
    ) -> None:
        super().__init__(daemon=True)
        self._history = history
        self._places = places
        self._number = number
        self._per_second = per_second
        self._next = dict.fromkeys(places, 0)
        self._wanted = True
        self._in_flight = 0
        self._given_up: list[str] = []
        self.last_ack_s = 0.0
        wanted = {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": "5"}
        wanted |= {"message.timeout.ms": FOR_EVER_MS, "request.timeout.ms": "5000", **QUICK, **settings}
        self._producer = LastingProducer(history, f"producer {number}", wanted)
        self.start()

    def run(self) -> None:
        begun, sent = time.monotonic(), 0
        while self._wanted:
            due = int((time.monotonic() - begun) * self._per_second)
            while sent < due and self._in_flight < IN_FLIGHT_MAX:
                self._send(self._places[sent % len(self._places)])
                sent += 1
            sent = due  # does not catch up after a fault
            self._settle(self._producer.poll(TICK_S))

    def _settle(self, is_sound: bool) -> None:
        """Records that were given up are incidents, unless a fatal error explains them."""
        given_up, self._given_up = self._given_up, []
        if is_sound:
            for text in given_up:
                self._history.incident(text)

    def _send(self, place: Place) -> None:
        number = self._next[place]
        self._next[place] += 1
        self._in_flight += 1
        try:
            self._producer.produce(place, value_of(self._number, number), self._done(place, number))
        except (KafkaException, BufferError) as refused:
            self._in_flight -= 1
            if isinstance(refused, BufferError) or not refused.args[0].fatal():  # `poll` raises a fatal error
                self._history.incident(f"producer {self._number} cannot send: {refused}")
                self._wanted = False

    def _done(self, place: Place, number: int) -> Callable[[KafkaError | None, Message], None]:
        def done(error: KafkaError | None, message: Message) -> None:
            self._in_flight -= 1
            if error is not None:
                self._history.ack(place, self._number, number, UNKNOWN)
                self._given_up.append(f"producer {self._number} gave up record {number} of {place}: {error}")
            else:
                self.last_ack_s = time.monotonic()
                offset = message.offset()
                self._history.ack(place, self._number, number, SOMEWHERE if offset is None or offset < 0 else offset)

        return done

    def stop(self) -> None:
        """Stop sending."""
        self._wanted = False

    def finish(self, patience_s: float) -> None:
        """Stop, and wait until all records are acknowledged."""
        self.stop()
        self.join()
        is_sound, left = self._producer.flush(patience_s)
        self._settle(is_sound)
        if left:
            self._history.incident(
                f"producer {self._number}: {left} records were not acknowledged within {patience_s} s"
            )


class Member(threading.Thread):
    """A group member that reads records and commits their offsets. settings: for TLS and the login."""

    def __init__(self, history: History, bootstrap: str, topic: str, group: str, name: str, settings: Settings) -> None:
        super().__init__(daemon=True)
        self._history = history
        self._group = group
        self._name = name
        self._wanted = True
        self._wished: dict[Place, int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": "10000",
                **QUICK,
                **settings,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._forget, on_revoke=self._forget, on_lost=self._forget)
        self.start()

    def _forget(self, consumer: Any, partitions: Any) -> None:
        """Drop uncommitted positions after a rebalance: the new owner continues from the committed offset."""
        self._wished.clear()

    def run(self) -> None:
        due_s = time.monotonic() + COMMIT_EVERY_S
        while self._wanted:
            for message in self._consumer.consume(500, 0.2):
                if message.error() is None:
                    self._take(message)
            if time.monotonic() > due_s and self._wished:
                self._commit()
                due_s = time.monotonic() + COMMIT_EVERY_S
        self._consumer.close()

    def _take(self, message: Message) -> None:
        place, offset = Place(message.topic() or "", message.partition() or 0), message.offset()
        assert offset is not None
        value = message.value()
        assert isinstance(value, bytes)
        self._history.read(place, self._name, offset, key_in(value))
        self._wished[place] = offset + 1

    def _commit(self) -> None:
        wished = dict(self._wished)
        self._wished.clear()
        asked = [TopicPartition(place.topic, place.partition, offset) for place, offset in wished.items()]
        began_s = time.monotonic()
        try:
            response = self._consumer.commit(offsets=asked, asynchronous=False)
            refused = {Place(one.topic, one.partition) for one in response or [] if one.error is not None}
        except KafkaException:
            refused = set(wished)
        acked_s = time.monotonic()
        for place, offset in wished.items():
            self._history.commit(self._group, place, Commit(began_s, math.inf if place in refused else acked_s, offset))

    def finish(self) -> None:
        self._wanted = False
        self.join(30)


def read_all(
    bootstrap: str, place: Place, start: int, end: int, patience_s: float, group: str, settings: Settings
) -> list[tuple[int, bytes]]:
    """(offset, value) of all committed records from `start` to `end`. group: a group id that the client requires;
    nothing is committed. Raises TimeoutError."""
    wanted = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    wanted |= {"isolation.level": "read_committed", "enable.partition.eof": True, **QUICK, **settings}
    consumer = Consumer(wanted)
    consumer.assign([TopicPartition(place.topic, place.partition, start)])
    found: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + patience_s
    position = start
    while position < end:
        for message in consumer.consume(5000, 0.5):
            error = message.error()
            if error is None:
                value = message.value()
                assert isinstance(value, bytes)
                offset = message.offset()
                assert offset is not None
                found.append((offset, value))
                position = found[-1][0] + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                position = max(position, message.offset() or start)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{place}: read only up to {position} of {end} within {patience_s} s")
    consumer.close()
    return found
