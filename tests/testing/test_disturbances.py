"""Faults of disks, between brokers and of states: stock clients are affected, and are not once these have healed."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from kpybroker.client.client import CommandFailed
from kpybroker.testing import Broker, Cluster
from kpybroker.testing.weather import WEATHER

WAIT_S = 30.0
QUIET = {"log_level": 0}


@pytest.fixture(scope="module", params=["process", "thread"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker({"offsets.topic.num.partitions": 3}, in_thread=request.param == "thread") as broker:
        yield broker


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, {"replica.lag.time.max.ms": 1000}, in_thread=True) as cluster:
        yield cluster


def produced(cluster: Cluster, topic: str, value: str = "x", *, timeout_ms: int = 1500, **settings: Any) -> str | None:
    """Produce a record. Returns the name of the delivery error."""
    errors: list[Any] = []
    more = {**QUIET, "message.timeout.ms": timeout_ms, **settings}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **more})
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    return None if errors[0] is None else str(errors[0].name())


def values(cluster: Cluster, topic: str) -> list[bytes | None]:
    return [record.value for record in cluster.records(topic)]


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---- disks


@pytest.mark.slow
@pytest.mark.parametrize("effect", ["full", "broken"])
def test_a_disk_that_fails_takes_the_partition_offline_until_a_restart(effect: str, broker: Broker) -> None:
    topic, other = (broker.topic(name, partitions=1) for name in ("t", "other"))
    assert produced(broker, topic, "before") is None
    with broker.disk_fault(topic=topic, **{effect: True}) as fault:  # type: ignore[misc]
        assert produced(broker, topic) == "_MSG_TIMED_OUT"
        assert produced(broker, other) is None, "other files are not affected"
        assert fault.hits > 0
    broker.restart()
    assert values(broker, topic) == [b"before"]
    assert produced(broker, topic, "after") is None


@pytest.mark.slow
def test_a_slow_disk_delays_and_a_stuck_one_stops_what_must_be_on_disk(broker: Broker) -> None:
    topic = broker.topic("durable", partitions=1, config={"flush.messages": 1})
    assert produced(broker, topic, "1") is None
    began = time.monotonic()
    with broker.disk_fault(topic=topic, partition=0, slow_s=0.4) as fault:
        assert produced(broker, topic, "2") is None
        fault.wait_hit()
    assert time.monotonic() - began >= 0.4
    with broker.disk_fault(topic=topic, stuck=True):
        assert produced(broker, topic, "3") == "_MSG_TIMED_OUT"
    assert produced(broker, topic, "4", timeout_ms=30_000) is None, "it has healed, without a restart"


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({}, "give exactly one of full, broken, slow_s and stuck, not none"),
        ({"full": True, "stuck": True}, "not full and stuck"),
        ({"slow_s": -1}, "delay_ms=-1000: must be from 0"),
        ({"full": True, "partition": 1}, "partition=1 needs a topic"),
        ({"full": True, "tpoic": "t"}, "a disk fault has no 'tpoic'"),
        ({"full": True, "node": 7}, "there is no broker 7"),
    ],
)
def test_a_disk_fault_that_makes_no_sense_is_refused(what: dict[str, Any], told: str, broker: Broker) -> None:
    with pytest.raises(ValueError, match=told), broker.disk_fault(**what):
        pass


def test_the_number_of_disk_faults_is_limited(broker: Broker) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(broker.disk_fault(full=True, topic="another"))
        with pytest.raises(ValueError, match="the disk has 100 faults already"):
            stack.enter_context(broker.disk_fault(full=True, topic="another"))


@pytest.mark.slow
def test_a_torn_tail_is_cut_off_and_a_flipped_bit_is_kept_from_readers(broker: Broker) -> None:
    torn, flipped = (broker.topic(name, partitions=1) for name in ("torn", "flipped"))
    for topic in (torn, flipped):
        for value in ("1", "2"):
            broker.send(topic, value)
    for damage in (lambda: broker.tear_tail(torn, 0, 5), lambda: broker.flip_bit(flipped, 0)):
        with pytest.raises(RuntimeError, match=r"broker 1 runs; call stop\(1\) or kill\(1\)"):
            damage()
    broker.kill()
    broker.tear_tail(torn, 0, 5)
    broker.flip_bit(flipped, 0)
    with pytest.raises(ValueError, match="has no replica of another-0"):
        broker.flip_bit("another", 0)
    with pytest.raises(ValueError, match="cannot cut 1000000 bytes off"):
        broker.tear_tail(torn, 0, 1_000_000)
    broker.start()
    assert values(broker, torn) == [b"1"]
    assert produced(broker, torn, "3") is None
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "any", "check.crcs": True, **QUIET})
    consumer.assign([TopicPartition(flipped, 0, 0)])
    message = consumer.poll(2)
    assert message is None or message.error() is not None, "no client reads the damaged record"
    consumer.close()


@pytest.mark.slow
def test_a_replica_whose_data_is_lost_is_copied_again(cluster: Cluster) -> None:
    topic = cluster.topic("t", partitions=1)
    cluster.send(topic, "1")
    lost = next(node for node in cluster.nodes if node != cluster.controller)
    cluster.kill(lost)
    cluster.lose_data(lost)
    cluster.start(lost)
    eventually(lambda: cluster.in_sync(topic) == cluster.nodes)
    cluster.move_leader(topic, 0, lost)
    assert values(cluster, topic) == [b"1"]


# ---- between brokers


@pytest.mark.slow
def test_a_follower_that_is_cut_off_leaves_the_isr_and_comes_back(cluster: Cluster) -> None:
    topic = cluster.topic("t", partitions=1, config={"min.insync.replicas": 3})
    leader, follower = (node for node in cluster.nodes if node != cluster.controller)
    cluster.move_leader(topic, 0, leader)
    assert produced(cluster, topic, acks="all") is None
    with cluster.cut(leader, follower):
        assert produced(cluster, topic, acks="all") == "_MSG_TIMED_OUT"
        eventually(lambda: cluster.in_sync(topic) == sorted({*cluster.nodes} - {follower}))
        assert produced(cluster, topic, acks=1) is None
    eventually(lambda: cluster.in_sync(topic) == cluster.nodes)
    assert produced(cluster, topic, acks="all", timeout_ms=30_000) is None


@pytest.mark.slow
def test_a_cut_ends_at_a_paused_broker_when_it_continues(cluster: Cluster) -> None:
    topic = cluster.topic("t", partitions=1)
    leader, follower = (node for node in cluster.nodes if node != cluster.controller)
    cluster.move_leader(topic, 0, leader)
    with cluster.cut(leader, follower):
        cluster.send(topic, "1")
        eventually(lambda: follower not in cluster.in_sync(topic))
        cluster.pause(follower)
    cluster.resume(follower)
    eventually(lambda: cluster.in_sync(topic) == cluster.nodes)


@pytest.mark.slow
def test_an_isolated_leader_is_replaced(cluster: Cluster) -> None:
    topic = cluster.topic("t", partitions=1, config={"min.insync.replicas": 2})
    cluster.send(topic, "1")
    isolated = cluster.controller
    cluster.move_leader(topic, 0, isolated)
    with cluster.isolate(isolated):
        eventually(lambda: isolated not in cluster.in_sync(topic))
        assert cluster.controller != isolated
        # the isolated broker believes that it still leads, so the client must not ask it
        others = ",".join(cluster.bootstrap_of(node) for node in cluster.nodes if node != isolated)
        assert produced(cluster, topic, "2", timeout_ms=30_000, acks="all", **{"bootstrap.servers": others}) is None
    eventually(lambda: cluster.in_sync(topic) == cluster.nodes)
    assert values(cluster, topic) == [b"1", b"2"]


@pytest.mark.slow
def test_a_broker_that_starts_during_a_cut_is_cut_off(cluster: Cluster) -> None:
    topic = cluster.topic("t", partitions=1)
    one, other = (node for node in cluster.nodes if node != cluster.controller)
    cluster.move_leader(topic, 0, one)
    cluster.kill(other)
    with cluster.cut(one, other):
        cluster.start(other)
        cluster.send(topic, "1")
        time.sleep(1)
        assert other not in cluster.in_sync(topic)
    eventually(lambda: cluster.in_sync(topic) == cluster.nodes)


@pytest.mark.slow
def test_the_controller_is_lost(cluster: Cluster) -> None:
    before = cluster.controller
    with cluster.lose_controller() as lost:
        assert lost == before
        assert cluster.controller != lost
        topic = cluster.topic("created-without-it", partitions=1)
        assert produced(cluster, topic, timeout_ms=30_000) is None
        with pytest.raises(ValueError, match="2 of 3 controllers run, and 2 must remain"), cluster.lose_controller():
            pass
    assert cluster.ended() == []


def test_brokers_that_cannot_be_cut_off_are_named(broker: Broker, cluster: Cluster) -> None:
    refused: list[tuple[Any, str]] = [
        (lambda: broker.isolate(1), "this Broker has no other brokers"),
        (lambda: broker.lose_controller(), "1 of 1 controllers run, and 1 must remain; use three brokers"),
        (lambda: cluster.cut(1, 1), "broker 1 cannot be cut off from itself"),
        (lambda: cluster.cut(1, 4), "there is no broker 4: this Cluster has brokers 1 to 3"),
        (lambda: cluster.isolate(0), "there is no broker 0"),
    ]
    for attempt, told in refused:
        with pytest.raises(ValueError, match=told), attempt():
            pass


# ---- states


def consume(broker: Broker, topic: str, group: str, lost: Any, assigned: Any, **more: Any) -> Consumer:
    """A consumer that has read a record of the topic, and tells which partitions it has lost or got."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest", **QUIET}
    consumer = Consumer({**settings, **more})
    consumer.subscribe([topic], on_lost=lambda _, them: lost(them), on_assign=lambda _, them: assigned(them))
    message = None
    while message is None:
        message = consumer.poll(WAIT_S)
    assert message.error() is None
    return consumer


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_that_are_removed_join_again(protocol: str, broker: Broker) -> None:
    topic, group = broker.topic("t", partitions=1), broker.group()
    broker.send(topic, "1")
    lost, again = list[Any](), list[Any]()
    more = {"heartbeat.interval.ms": 200} if protocol == "classic" else {}
    consumer = consume(broker, topic, group, lost.extend, again.extend, **{"group.protocol": protocol, **more})
    [removed] = broker.remove_members(group)
    assert removed == consumer.memberid()
    eventually(lambda: consumer.poll(0.05) is None and bool(lost) and len(again) == 2)
    consumer.close()
    with pytest.raises(CommandFailed, match="another"):
        broker.remove_members("another")


@pytest.mark.slow
def test_a_producer_is_fenced(broker: Broker) -> None:
    topic = broker.topic("t", partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic, **QUIET})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"never")
    assert producer.flush(WAIT_S) == 0
    broker.fence_producer(topic)
    with pytest.raises(KafkaException, match="fenced"):
        producer.commit_transaction(WAIT_S)
    assert broker.records(topic, committed_only=True) == []


@pytest.mark.slow
def test_a_consumer_is_out_of_range(broker: Broker) -> None:
    topic = broker.topic("t", partitions=1)
    broker.send(topic, *"123")
    broker.delete_records(topic, {0: 2})
    with pytest.raises(ValueError, match=f"{topic} has no partition 9: it has 1"):
        broker.delete_records(topic, {9: 1})
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "any", "auto.offset.reset": "error", **QUIET}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(WAIT_S)
    assert message is not None
    assert message.error() is not None
    consumer.close()


def test_compaction_and_retention_at_once(broker: Broker) -> None:
    compacted = broker.topic("compacted", partitions=1, config={"cleanup.policy": "compact"})
    broker.send(compacted, *"123", key="k")
    broker.compact(compacted)
    assert values(broker, compacted) == [b"3"]
    with pytest.raises(ValueError, match=re.escape("there is no topic 'compactd-x'")):
        broker.compact("compactd-x")
    short = broker.topic("short", partitions=1, config={"retention.ms": 60_000})
    with pytest.raises(ValueError, match=f"{short} is not compacted: set cleanup.policy=compact"):
        broker.compact(short)
    broker.send(short, "old", timestamp_ms=1)
    broker.send(short, "new")
    broker.apply_retention()
    assert values(broker, short) == [b"new"]


# ---- weather


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WEATHER))
def test_an_idempotent_producer_loses_and_doubles_nothing_in_any_weather(name: str, cluster: Cluster) -> None:
    topic = cluster.topic("t", partitions=3)
    settings = {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 0, **QUIET}
    producer = Producer({**settings, "message.timeout.ms": 120_000})
    with cluster.weather(name):
        for number in range(300):
            producer.produce(topic, str(number), partition=number % 3)
            if number % 10 == 0:
                producer.flush(WAIT_S)
        assert producer.flush(2 * WAIT_S) == 0
    assert sorted(int(value or b"") for value in values(cluster, topic)) == list(range(300))


def test_an_unknown_weather_is_refused(broker: Broker) -> None:
    told = "there is no weather 'flaky_netwrok': there are flaky_network, slow_disk, rolling_restart; did you mean"
    with pytest.raises(ValueError, match=told), broker.weather("flaky_netwrok"):
        pass
    with pytest.raises(ValueError, match="did you mean slow_disk"), broker.weather("slow"):
        pass
