"""Stock clients that continue to run while the broker software is changed. They must lose no record."""

from __future__ import annotations

import contextlib
import json
import time
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.changing import PATIENCE_S
from compat_tests.transactors import Transactor

TOPIC, PARTITIONS = "company", 3
PROTOCOLS = ("classic", "consumer")
NO_ADDRESS_S = 10.0
"""A client that rebootstraps from bootstrap.servers has no address for a moment."""


class Reader:
    """A group member and all records that it has read. It continues at its position, which it may have committed on
    either broker."""

    def __init__(self, common: dict[str, Any], protocol: str) -> None:
        self._settings = {
            **common,
            "group.id": protocol,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "statistics.interval.ms": 1000,
            "stats_cb": self._told,
        }
        self._read: list[bytes] = []
        self._had_address_s = 0.0
        self._state: dict[str, Any] = {}
        self._begin()

    def _begin(self) -> None:
        self._consumer = Consumer(self._settings)
        self._consumer.subscribe([TOPIC])

    def _told(self, statistics: str) -> None:
        told = json.loads(statistics)
        if {broker["source"] for broker in told["brokers"].values()} & {"configured", "learned"}:
            self._had_address_s = time.monotonic()
        brokers = {name: (broker["source"], broker["state"]) for name, broker in told["brokers"].items()}
        self._state = {"brokers": brokers, "group": told.get("cgrp")}

    @property
    def _forgot_all(self) -> bool:
        """Whether the client has dropped all addresses, including those of bootstrap.servers, so that it sends no more
        requests.

        librdkafka 2.10 and later drops brokers that a Metadata response does not contain, and may fail to rebootstrap
        if it contains none (its issue 5301): Apache Kafka sends such responses for some milliseconds when its last
        broker stops.
        """
        return time.monotonic() > self._had_address_s + NO_ADDRESS_S

    def read_all(self, sent: list[bytes], *, may_forget: bool) -> None:
        """Read until all sent records have arrived, each once, and then commit.

        A client that has dropped all brokers is restarted, as its user would have to; this is a failure unless it may
        have received an empty Metadata response.
        """
        self._had_address_s = time.monotonic()  # the client reports errors when it is polled
        deadline = time.monotonic() + PATIENCE_S
        while len(self._read) < len(sent):
            if self._forgot_all:
                assert may_forget, "the client has no address, although no response told it so"
                self.close()
                self._begin()
                self._had_address_s = time.monotonic()
                # the client joins when the session of its predecessor has expired
                deadline = time.monotonic() + PATIENCE_S
            assert time.monotonic() < deadline, f"missing: {set(sent) - set(self._read)}; the client: {self._state}"
            message = self._consumer.poll(1.0)
            if message is not None and message.error() is None:
                self._read.append(message.value())
        assert sorted(self._read) == sorted(sent)
        self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        """Leave the group, if its coordinator is reachable."""
        self._consumer.close()


class Company:
    """librdkafka clients (an idempotent producer and a group member of each protocol), and transactional producers of
    `kinds`.

    `names` are their topics, groups and ids, which other comparisons must leave out.
    """

    def __init__(self, bootstrap: str, kinds: tuple[str, ...], replicas: int) -> None:
        self._ends = contextlib.ExitStack()
        self._sent: list[bytes] = []
        self.names = (TOPIC, *PROTOCOLS, *kinds)
        common = {"bootstrap.servers": bootstrap, "log_level": 0}
        admin = AdminClient(common)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, replicas)], operation_timeout=30)[TOPIC].result(30)
        self._producer = Producer({**common, "enable.idempotence": True})
        self._readers = [Reader(common, protocol) for protocol in PROTOCOLS]
        for reader in self._readers:
            self._ends.callback(reader.close)
        self._transactors = [self._ends.enter_context(Transactor(kind, bootstrap)) for kind in kinds]
        for one in self._transactors:
            one.do("producer", one.kind, 600_000)
            one.do("begin")
            self._transact(one)

    def _transact(self, one: Transactor) -> None:
        value = f"{one.kind}-{len(self._sent)}"
        one.do("send", TOPIC, len(self._sent) % PARTITIONS, value)
        one.do("flush")
        self._sent.append(value.encode())

    def go_on(self, *, may_forget: bool) -> None:
        """Commit the transactions from the previous broker, check that all records are read once, and begin new
        transactions.

        may_forget: as in `Reader.read_all`.
        """
        for number in range(10):
            self._sent.append(b"%d %d" % (len(self._sent), number))
            self._producer.produce(TOPIC, self._sent[-1])
        assert self._producer.flush(PATIENCE_S) == 0, "not acknowledged"
        for one in self._transactors:
            self._transact(one)
            one.do("commit")
        for reader in self._readers:
            reader.read_all(self._sent, may_forget=may_forget)
        for one in self._transactors:
            one.do("begin")
            self._transact(one)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()
