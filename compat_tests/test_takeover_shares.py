"""Share groups in use while kpybroker and Apache Kafka run in turn on the same directory: accepted records
stay accepted, and all others are delivered by the other broker."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from confluent_kafka import Producer

from compat_tests.changing import until
from compat_tests.dumps import dump
from compat_tests.share_consumer import ShareConsumer, Shared
from oracle.takeover import KAFKA, KPYBROKER, Home
from oracle.tools import tool

TOPIC, GROUP = "jobs", "workers"
STATE = "__share_group_state"
POLLS = 120


class Queue:
    """The topic, its records, and their states in one group."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._count = 0
        self.left: set[int] = set()
        """The offsets that nobody has accepted or rejected."""

    def make(self) -> None:
        tool("kafka-topics", "--create", "--topic", TOPIC, bootstrap=self._home.bootstrap).ok()
        earliest = ("--alter", "--entity-type", "groups", "--entity-name", GROUP, "--add-config")
        tool("kafka-configs", *earliest, "share.auto.offset.reset=earliest", bootstrap=self._home.bootstrap).ok()

    def send(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self._home.bootstrap, "batch.num.messages": 1})
        for number in range(self._count, self._count + count):
            producer.produce(TOPIC, f"v{number}", partition=0)
            self.left.add(number)
        assert producer.flush(30) == 0
        self._count += count

    def consumer(self) -> ShareConsumer:
        return ShareConsumer(self._home.bootstrap, GROUP, TOPIC, share_acknowledgement_mode="explicit")

    def take(self, consumer: ShareConsumer) -> dict[int, Shared]:
        """Consume all records that are left, and check that there are no others."""
        found = {record.offset: record for record in consumer.poll_until(len(self.left), POLLS)}
        assert set(found) == self.left
        assert all(record.value == f"v{offset}" for offset, record in found.items())
        return found

    def acknowledge(self, consumer: ShareConsumer, found: dict[int, Shared], kind: str, offsets: Iterable[int]) -> None:
        for offset in offsets:
            consumer.acknowledge(found[offset], kind)
            if kind in ("ACCEPT", "REJECT"):
                self.left.discard(offset)

    def lag(self) -> str:
        """The records that are left, as Kafka's tool prints them. The start offset may be lower
        than the stored one."""
        told = tool("kafka-share-groups", "--describe", "--group", GROUP, bootstrap=self._home.bootstrap).ok()
        return next((line.split()[-1] for line in told.splitlines() if TOPIC in line), "")


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kinds", "how"),
    [
        ((KAFKA, KPYBROKER, KAFKA), "stop"),
        ((KAFKA, KPYBROKER, KAFKA), "kill9"),
        ((KPYBROKER, KAFKA, KPYBROKER), "stop"),
        ((KPYBROKER, KAFKA, KPYBROKER), "kill9"),
    ],
    ids=lambda part: part if isinstance(part, str) else "-".join(part),
)
def test_accepted_released_and_held_records(kinds: tuple[str, str, str], how: str) -> None:
    with Home(how=how) as home:
        queue = Queue(home)
        home.start(kinds[0])
        queue.make()
        queue.send(10)
        first = queue.consumer()
        found = queue.take(first)
        queue.acknowledge(first, found, "ACCEPT", (0, 1, 2, 8))
        queue.acknowledge(first, found, "RELEASE", (3, 4))
        queue.acknowledge(first, found, "REJECT", (9,))
        assert first.commit() == {0: "NONE"}  # 5, 6 and 7 are held
        assert queue.lag() == "5"
        home.end()
        first.kill()

        home.start(kinds[1])
        until(lambda: queue.lag() == "5", "the group is where it was")
        second = queue.consumer()
        found = queue.take(second)
        assert {offset: found[offset].deliveries for offset in (3, 4)} == {3: 2, 4: 2}
        queue.acknowledge(second, found, "ACCEPT", (3, 5))
        queue.acknowledge(second, found, "RELEASE", (4,))
        assert second.commit() == {0: "NONE"}
        queue.send(2)
        assert queue.lag() == "5"
        home.end()
        second.kill()

        home.start(kinds[2])
        until(lambda: queue.lag() == "5", "the group is where it was")
        third = queue.consumer()
        found = queue.take(third)
        assert sorted(found) == [4, 6, 7, 10, 11]
        assert found[4].deliveries == 3
        queue.acknowledge(third, found, "ACCEPT", found)
        assert third.commit() == {0: "NONE"}
        queue.send(1)
        queue.take(third)
        third.kill()
        home.stop()
        files = sorted(path for data in home.data for path in data.glob(f"{STATE}-*/*.log"))
        assert '"deliveryState":2' in dump(files, "--share-group-state-decoder")
