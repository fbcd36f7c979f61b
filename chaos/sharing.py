"""A share group as a load (KIP-932): workers take records of a topic of their own, and accept or release them.

The broker may deliver a record again until the worker's acceptance is confirmed, and a worker may hold records for some
time that the broker has meanwhile given to another one. So a record that is accepted may still appear for SLACK_S; but
the last worker, which begins when all others have ended, must not get it.
"""

from __future__ import annotations

import random
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer

from chaos.history import SOMEWHERE, UNKNOWN, Delivery, History, Place
from chaos.librdkafka import QUICK, Production
from kpybroker.wire.rpc import incremental_alter_configs as altering
from oracle.asking import ask
from oracle.target import die_with_parent

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
DELIVERED, ACCEPTED = "delivered", "accepted"
SETTINGS = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": "10",  # killed brokers count deliveries that no worker has seen
    "share.record.lock.duration.ms": "15000",
}


class Worker(threading.Thread):
    """A worker in a process of its own, and the thread that notes what it says.

    docs/roadmap.md tells what was seen with workers in the process of the other clients.
    """

    def __init__(self, history: History, bootstrap: str, number: int, *, is_last: bool = False) -> None:
        super().__init__(daemon=True)
        self._history = history
        self._is_last = is_last
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.sharing", bootstrap, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=die_with_parent,
        )
        self.start()

    def run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, partition, at_s, *offsets = line.split()
            place = Place(TOPIC, int(partition))
            for offset in map(int, offsets):
                if kind == DELIVERED:
                    self._history.shared.deliver(place, Delivery(float(at_s), offset, self._is_last))
                else:
                    self._history.shared.accept(place, [offset], float(at_s))
        if self._process.wait():
            self._history.incident(f"a share worker ended with {self._process.returncode}")

    def finish(self) -> None:
        """Let it leave the group, and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.join(60)
        self._process.kill()


def work(bootstrap: str, number: int) -> None:
    """Accept or release what is delivered, and print it, until standard input ends."""
    chance = random.Random(number)
    settings = {"bootstrap.servers": bootstrap, "group.id": GROUP, "share.acknowledgement.mode": "explicit", **QUICK}
    consumer = ShareConsumer(settings)
    consumer.subscribe([TOPIC])
    while not select.select([sys.stdin], [], [], 0)[0]:
        began_s = time.monotonic()
        try:
            messages = [message for message in consumer.poll(POLL_S) if message.error() is None]
            if messages:
                _acknowledge(consumer, messages, began_s, chance)
        except KafkaException:
            continue  # what was not confirmed is delivered again
    consumer.close()


def _acknowledge(consumer: Any, messages: list[Any], began_s: float, chance: random.Random) -> None:
    accepted: dict[int, list[int]] = {}
    for message in messages:
        _say(DELIVERED, message.partition(), began_s, [message.offset()])
        if (message.delivery_count() or 1) == 1 and chance.random() < RELEASED:
            consumer.acknowledge(message, AcknowledgeType.RELEASE)
            continue
        consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        accepted.setdefault(message.partition(), []).append(message.offset())
    for partition, failure in consumer.commit_sync(COMMIT_S).items():
        if failure is None:
            _say(ACCEPTED, partition.partition, time.monotonic(), accepted.get(partition.partition, []))


def _say(kind: str, partition: int, at_s: float, offsets: list[int]) -> None:
    print(kind, partition, at_s, *offsets, flush=True)


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


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
