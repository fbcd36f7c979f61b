"""Streams groups (KIP-1071): Kafka Streams with group.protocol=streams, which the broker gives its tasks and topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from compat_tests.client_confluent import Confluent
from compat_tests.conftest import MakeTopic, Running, start_target
from compat_tests.pipelines import Program, properties
from compat_tests.vocabulary import Message, closing, send_all

TEXT = ["der Wind weht", "weht der Wind", "wo der Fluss in den Fluss fließt", "Wind"]
REPEATED = 200
SETTINGS = {
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.min.session.timeout.ms": "3000",
    "group.streams.session.timeout.ms": "6000",
    "group.streams.initial.rebalance.delay.ms": "200",
    "offsets.topic.num.partitions": "5",
}


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest, target_name: str) -> Iterator[Running]:
    """A broker with short intervals for streams groups."""
    broker = start_target(target_name, SETTINGS)
    yield broker
    broker.stop()
    if not request.session.testsfailed:
        broker.remove()


def test_words_are_counted(
    broker: Running, admin: AdminClient, make_topic: MakeTopic, unique: Callable[[], str], tmp_path: Path
) -> None:
    lines, counts, application = make_topic(3), make_topic(2), unique()
    producer = Confluent().producer(broker.bootstrap)
    with closing(producer):
        send_all(producer, lines, [Message(line.encode()) for line in TEXT * REPEATED])
    wanted = Counter(word.encode() for line in TEXT * REPEATED for word in line.split())
    found: dict[bytes | None, int] = {}
    consumer = Confluent().consumer(broker.bootstrap, isolation="read_committed")
    more = properties(tmp_path / "more", {"group.protocol": "streams"})
    arguments = [broker.bootstrap, application, "one", str(tmp_path), "at_least_once", "words", lines, counts, more]
    with closing(consumer), Program("Counting", *arguments, log=tmp_path / "log") as counting:
        consumer.assign({(counts, partition): "earliest" for partition in range(2)})

        def counted() -> bool:
            for one in consumer.poll(0.2):
                found[one.key] = int(one.value or b"0")
            return found == wanted

        counting.until(counted, f"counted; {found}")
        counting.stop()
    topics = admin.list_topics(timeout=10).topics
    store = f"{application}-KSTREAM-AGGREGATE-STATE-STORE-0000000003"
    assert len(topics[f"{store}-repartition"].partitions) == 3
    assert len(topics[f"{store}-changelog"].partitions) == 3
    assert settings_of(admin, f"{store}-changelog")["cleanup.policy"] == "compact"
    repartition = settings_of(admin, f"{store}-repartition")
    assert {name: repartition[name] for name in ("cleanup.policy", "segment.bytes", "retention.ms")} == {
        "cleanup.policy": "delete",
        "segment.bytes": "52428800",
        "retention.ms": "-1",
    }


def settings_of(admin: AdminClient, topic: str) -> dict[str, str | None]:
    """The settings of a topic."""
    [told] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in told.result(10).items()}
