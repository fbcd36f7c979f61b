"""A share group as a load (KIP-932): workers take records of a topic of their own, and accept or release them.

The broker may deliver a record again until the worker's acceptance is confirmed, and a worker may hold records for some
time that the broker has meanwhile given to another one. So a record that is accepted may still appear for SLACK_S; but
the last worker, which begins when all others have ended, must not get it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer

from chaos.history import SOMEWHERE, UNKNOWN, Delivery, History, Place
from chaos.librdkafka import QUICK, Production
from kpybroker.wire.rpc import incremental_alter_configs as altering
from oracle.asking import ask

TOPIC, PARTITIONS = "jobs", 3
GROUP = "share"
PRODUCER = 9
PER_SECOND = 100.0
POLL_S = 0.5
COMMIT_S = 10.0
RELEASED = 0.05
"""How much of the records is released at the first delivery."""
QUIET_S = 10.0
"""How long the last worker waits for records that nobody has accepted."""
GROUP_RESOURCE = 32
SETTINGS = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": "10",  # killed brokers count deliveries that no worker has seen
    "share.record.lock.duration.ms": "15000",
}


class Worker(threading.Thread):
    """Accepts or releases what it gets, until `finish`."""

    def __init__(self, history: History, bootstrap: str, number: int, *, is_last: bool = False) -> None:
        super().__init__(daemon=True)
        self._history = history
        self._is_last = is_last
        self._wanted = True
        self._random = random.Random(number)
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "share.acknowledgement.mode": "explicit",
                **QUICK,
            }
        )
        self._consumer.subscribe([TOPIC])
        self.start()

    def run(self) -> None:
        while self._wanted:
            began_s = time.monotonic()
            try:
                messages = [message for message in self._consumer.poll(POLL_S) if message.error() is None]
                if messages:
                    self._work(messages, began_s)
            except KafkaException:
                continue  # what was not confirmed is delivered again
        self._consumer.close()

    def _work(self, messages: list[Any], began_s: float) -> None:
        accepted: dict[Place, list[int]] = {}
        for message in messages:
            place = Place(message.topic(), message.partition())
            self._history.shared.deliver(place, Delivery(began_s, message.offset(), self._is_last))
            if (message.delivery_count() or 1) == 1 and self._random.random() < RELEASED:
                self._consumer.acknowledge(message, AcknowledgeType.RELEASE)
                continue
            self._consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            accepted.setdefault(place, []).append(message.offset())
        told = self._consumer.commit_sync(COMMIT_S)
        now_s = time.monotonic()
        for partition, failure in told.items():
            if failure is None:
                place = Place(partition.topic, partition.partition)
                self._history.shared.accept(place, accepted.get(place, ()), now_s)

    def finish(self) -> None:
        """Stop, and leave the group."""
        self._wanted = False
        self.join(60)


class ShareLoad:
    """A producer, and two workers of one group."""

    def __init__(self, history: History, bootstrap: str, address: tuple[str, int], settings: Mapping[str, str]) -> None:
        self._history = history
        self._bootstrap = bootstrap
        _configure(address)
        self._places = [Place(TOPIC, partition) for partition in range(PARTITIONS)]
        self._producer = Production(history, bootstrap, self._places, PRODUCER, PER_SECOND, settings)
        self._workers = [Worker(history, bootstrap, number) for number in (1, 2)]

    def finish(self, patience_s: float) -> None:
        """Stop the producer, wait until all records are delivered, and let a last worker look for more."""
        self._producer.finish(patience_s)
        shared, deadline = self._history.shared, time.monotonic() + patience_s
        for place in self._places:
            shared.stored[place] = {
                offset
                for offset in self._history.acked.pop((place, PRODUCER), ())
                if offset not in (SOMEWHERE, UNKNOWN)
            }
        while any(shared.left(place) for place in self._places) and time.monotonic() < deadline:
            time.sleep(0.2)
        for worker in self._workers:
            worker.finish()
        last = Worker(self._history, self._bootstrap, 3, is_last=True)
        time.sleep(QUIET_S)
        last.finish()


def _configure(address: tuple[str, int]) -> None:
    configs = [altering.AlterableConfig(name=name, config_operation=0, value=value) for name, value in SETTINGS.items()]
    resource = altering.AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=GROUP, configs=configs)
    told = ask(address, "IncrementalAlterConfigs", 1, altering.Request(resources=[resource]), altering.Response, 30)
    assert not told.responses[0].error_code, told
