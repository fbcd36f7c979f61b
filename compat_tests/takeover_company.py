"""Stock clients that stay connected while the broker below them is changed for another one, and lose nothing."""

from __future__ import annotations

import contextlib
import time
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.changing import PATIENCE_S
from compat_tests.transactors import Transactor

TOPIC, PARTITIONS = "company", 3
PROTOCOLS = ("classic", "consumer")


class Company:
    """librdkafka: an idempotent producer, a member of a group of each protocol; and transactional producers of `kinds`.

    What they hold is excluded from other looks by `names`.
    """

    names = (TOPIC, *PROTOCOLS)

    def __init__(self, bootstrap: str, kinds: tuple[str, ...], replicas: int) -> None:
        self._ends = contextlib.ExitStack()
        self._sent: list[bytes] = []
        self._read: dict[str, list[bytes]] = {protocol: [] for protocol in PROTOCOLS}
        self.names = (TOPIC, *PROTOCOLS, *kinds)
        common = {"bootstrap.servers": bootstrap, "log_level": 0}
        admin = AdminClient(common)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, replicas)], operation_timeout=30)[TOPIC].result(30)
        self._producer = Producer({**common, "enable.idempotence": True})
        self._consumers = {protocol: self._consumer(common, protocol) for protocol in PROTOCOLS}
        self._transactors = [self._ends.enter_context(Transactor(kind, bootstrap)) for kind in kinds]
        for one in self._transactors:
            one.do("producer", one.kind, 600_000)
            one.do("begin")
            self._transact(one)

    def _consumer(self, common: dict[str, Any], protocol: str) -> Consumer:
        consumer = Consumer(
            {
                **common,
                "group.id": protocol,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([TOPIC])
        self._ends.callback(consumer.close)
        return consumer

    def _transact(self, one: Transactor) -> None:
        value = f"{one.kind}-{len(self._sent)}"
        one.do("send", TOPIC, len(self._sent) % PARTITIONS, value)
        one.do("flush")
        self._sent.append(value.encode())

    def go_on(self) -> None:
        """What was begun on the broker before is committed; all is read by all, once; new transactions are begun."""
        for number in range(10):
            self._sent.append(b"%d %d" % (len(self._sent), number))
            self._producer.produce(TOPIC, self._sent[-1])
        assert self._producer.flush(PATIENCE_S) == 0, "not acknowledged"
        for one in self._transactors:
            self._transact(one)
            one.do("commit")
        for protocol, consumer in self._consumers.items():
            self._read_all(consumer, self._read[protocol])
        for one in self._transactors:
            one.do("begin")
            self._transact(one)

    def _read_all(self, consumer: Consumer, read: list[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(read) < len(self._sent):
            assert time.monotonic() < deadline, f"missing: {set(self._sent) - set(read)}"
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                read.append(message.value())
        assert sorted(read) == sorted(self._sent)
        consumer.commit(asynchronous=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()
