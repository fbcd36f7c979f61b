"""A test advances the clock of its brokers, and everything expires that would have expired by then."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from kpybroker.testing import Broker, Cluster
from kpybroker.testing.clock import STEPS_MAX

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 3}) as broker:
        yield broker


def test_retention_deletes_what_has_become_old(broker: Broker) -> None:
    topic = broker.topic("old", partitions=1, config={"retention.ms": 2 * HOUR_MS, "segment.ms": HOUR_MS})
    broker.send(topic, "a")
    broker.clock.advance("61m")
    broker.send(topic, "b")
    assert [record.value for record in broker.records(topic)] == [b"a", b"b"]
    broker.clock.advance("1h")
    assert [record.value for record in broker.records(topic)] == [b"b"]
    broker.clock.advance("2h")
    assert broker.records(topic) == []


def test_compaction_lag_passes(broker: Broker) -> None:
    config = {"cleanup.policy": "compact", "min.compaction.lag.ms": DAY_MS, "segment.ms": HOUR_MS}
    topic = broker.topic("compacted", partitions=1, config={**config, "min.cleanable.dirty.ratio": 0})
    broker.send(topic, "1", "2", key="k")
    broker.clock.advance("2h")
    broker.send(topic, "3", key="k")  # in another segment, because segment.ms has passed
    assert [record.value for record in broker.records(topic)] == [b"1", b"2", b"3"]
    broker.clock.advance("1d")
    assert [record.value for record in broker.records(topic)] == [b"2", b"3"], "the active segment stays"


def join(broker: Broker, topic: str, group: str, **more: Any) -> Consumer:
    """A consumer that has read the topic and committed its end."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest", **more}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([topic])
    deadline = time.monotonic() + 30
    while (message := consumer.poll(1)) is None:
        assert time.monotonic() < deadline
    assert message.error() is None
    consumer.commit(message, asynchronous=False)
    return consumer


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_session_ends_and_then_the_offsets_expire(protocol: str, broker: Broker) -> None:
    """The member has gone without leaving, so the offsets expire only after its session has ended."""
    topic, group = broker.topic("read", partitions=1), broker.group()
    broker.send(topic, "a")
    more = {"group.protocol": protocol, "group.instance.id": "static"}
    join(broker, topic, group, **more).close()  # a static member does not leave
    with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
        broker.reset()
    broker.clock.advance("6d")
    assert broker.committed(group, topic) == {0: 1}
    broker.clock.advance("2d")
    assert broker.committed(group, topic) == {}
    broker.reset()


@pytest.mark.slow
def test_a_member_whose_session_has_ended_joins_again(broker: Broker) -> None:
    topic, group = broker.topic("read", partitions=1), broker.group()
    broker.send(topic, "a")
    consumer = join(broker, topic, group)
    before = consumer.memberid()
    broker.clock.advance("5m")
    broker.send(topic, "b")
    values, deadline = [], time.monotonic() + 30
    while consumer.memberid() == before or b"b" not in values:
        assert time.monotonic() < deadline
        message = consumer.poll(0.1)
        values += [] if message is None else [message.value()]
    consumer.close()


def begin(cluster: Cluster, topic: str, partitions: int) -> Producer:
    """A producer that has written to the partitions in a transaction, which it does not end."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": topic, "transaction.timeout.ms": 60_000}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in range(partitions):
        producer.produce(topic, b"never", partition=partition)
    assert producer.flush(30) == 0
    return producer


@pytest.mark.slow
def test_a_transaction_times_out(broker: Broker) -> None:
    topic = broker.topic("written", partitions=1)
    producer = begin(broker, topic, 1)
    broker.send(topic, "plain")
    assert broker.records(topic, committed_only=True) == []
    broker.clock.advance("50s")
    assert broker.records(topic, committed_only=True) == []
    broker.clock.advance("30s")
    assert [record.value for record in broker.records(topic, committed_only=True)] == [b"plain"]
    with pytest.raises(KafkaException, match=r"fenced|INVALID_PRODUCER_EPOCH"):
        producer.commit_transaction(30)


@pytest.mark.slow
def test_a_transaction_over_several_brokers_has_ended_when_the_clock_has_been_advanced() -> None:
    with Cluster(3, {"transaction.state.log.num.partitions": 3}) as cluster:
        topic = cluster.topic("written", partitions=6)
        begin(cluster, topic, 6)
        for partition in range(6):
            cluster.send(topic, "plain", partition=partition)
        cluster.clock.advance("2m")
        assert len(cluster.records(topic, committed_only=True)) == 6


@pytest.mark.slow
def test_brokers_that_were_stopped_start_at_the_advanced_time() -> None:
    config = {"offsets.topic.num.partitions": 3}
    with Cluster(3, config) as cluster:
        topic = cluster.topic("t", partitions=3, config={"message.timestamp.type": "LogAppendTime"})
        group = cluster.group()
        cluster.send(topic, "a", partition=0)
        join(cluster, topic, group, **{"group.instance.id": "static"}).close()
        cluster.clock.advance("30s")
        cluster.stop(3)
        cluster.clock.advance("9d")
        assert cluster.committed(group, topic) == {}
        cluster.start(3)
        for partition in range(3):
            cluster.move_leader(topic, partition, 3)
            before_ms = time.time_ns() // 1_000_000
            cluster.send(topic, "b", partition=partition)
            appended_ms = max(each.timestamp_ms for each in cluster.records(topic) if each.partition == partition)
            assert 0 <= appended_ms - before_ms - 9 * DAY_MS < HOUR_MS
        assert cluster.ended() == []
        assert not re.search(r"broker [12] is fenced", cluster.log), "no heartbeat is late because a clock was advanced"


def test_an_advance_has_a_limited_number_of_steps(broker: Broker) -> None:
    """Every ten minutes, a coordinator looks for offsets to expire, which would be 525,600 steps in ten years."""
    topic, group = broker.topic("t", partitions=1), broker.group()
    broker.send(topic, "a")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    node = broker._nodes[1]  # noqa: SLF001  # counts the commands, which is what the limit is about
    sent: list[object] = []
    command = node.command
    node.command = lambda each: sent.append(each) or command(each)  # type: ignore
    try:
        broker.clock.advance("520w")
    finally:
        del node.command
    assert 2 < len(sent) <= STEPS_MAX + 3
    assert broker.committed(group, topic) == {}


@pytest.mark.parametrize(
    ("by", "told"),
    [
        ("soon", "cannot read the time span 'soon': write for example 45s, 1h30m or 7d"),
        ("", "cannot read the time span"),
        ("-1d", "cannot read the time span"),
        (5, "cannot read the time span 5"),
        ("0s", "it only moves forward"),
        (timedelta(hours=-1), "it only moves forward"),
        ("36601d", "the clock can be at most 36600 days ahead in all"),
    ],
)
def test_a_span_that_makes_no_sense_is_refused(by: Any, told: str, broker: Broker) -> None:
    ahead = broker.clock.ahead
    with pytest.raises(ValueError, match=re.escape(told)):
        broker.clock.advance(by)
    assert broker.clock.ahead == ahead


@pytest.mark.slow
def test_the_clock_of_brokers_that_do_not_run_is_not_advanced() -> None:
    broker = Broker()
    with pytest.raises(RuntimeError, match="has not been started"):
        broker.clock.advance("1d")
    with broker:
        broker.pause()
        with pytest.raises(RuntimeError, match="broker 1 is paused"):
            broker.clock.advance("1d")
        broker.stop()
        with pytest.raises(RuntimeError, match="no broker is running"):
            broker.clock.advance("1d")
    assert broker.clock.ahead == timedelta()
