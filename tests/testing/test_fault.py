"""Tests faults in requests: a stock client is affected by each fault, but not after the fault has been removed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kpybroker.cli.control import execute
from kpybroker.cli.fault_commands import rule_of
from kpybroker.client.peer import Peer
from kpybroker.errors import KafkaError
from kpybroker.handlers import refused
from kpybroker.server.node import Node
from kpybroker.server.requests.faults import FAULTS_MAX
from kpybroker.testing import Broker, Cluster
from kpybroker.wire.api import API, Api, Audience
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.codec.layout import Array, Fixed, Piece, Struct, Text, layout
from kpybroker.wire.frame import encode_response, parse_response_header
from kpybroker.wire.plain import UUID, as_plain, errors_in
from tests.asking import make, put
from tests.conftest import WithBroker

PATIENCE_S = 30
QUIET = {"log_level": 0, "message.timeout.ms": 20_000}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.topic(create=True)


def produced(broker: Cluster, topic: str, value: str = "x", **settings: Any) -> tuple[str | None, float]:
    """Produce a record. Returns the name of the delivery error, and the duration in seconds."""
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, **QUIET, **settings})
    producer.list_topics(topic, timeout=PATIENCE_S)
    began = time.monotonic()
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    return None if errors[0] is None else errors[0].name(), time.monotonic() - began


def values(broker: Cluster, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


def test_an_error_that_a_client_does_not_retry(broker: Broker, topic: str) -> None:
    with broker.fault("Produce", error="TOPIC_AUTHORIZATION_FAILED", topic=topic) as fault:
        assert produced(broker, topic)[0] == "TOPIC_AUTHORIZATION_FAILED"
        assert produced(broker, broker.topic(create=True))[0] is None, "another topic"
        assert fault.hits == 1
    assert values(broker, topic) == []
    assert produced(broker, topic)[0] is None


def test_errors_that_a_client_retries(broker: Broker, topic: str) -> None:
    with broker.fault("Produce", error="NOT_LEADER_OR_FOLLOWER", skip=1, times=2) as fault:
        assert [produced(broker, topic, value)[0] for value in "abc"] == [None] * 3
        assert fault.hits == 2
    assert fault.hits == 2
    assert values(broker, topic) == [b"a", b"b", b"c"]


def test_of_two_faults_the_inner_one_takes_the_request(broker: Broker, topic: str) -> None:
    with broker.fault("Produce", error="TOPIC_AUTHORIZATION_FAILED") as outer:
        with broker.fault("Produce", error="INVALID_RECORD", topic=topic, times=1) as inner:
            assert [produced(broker, topic)[0] for _ in range(2)] == ["INVALID_RECORD", "TOPIC_AUTHORIZATION_FAILED"]
        assert (inner.hits, outer.hits) == (1, 1)


@pytest.mark.slow
def test_a_reply_that_is_late(broker: Broker, topic: str) -> None:
    with broker.fault("Produce", delay_s=0.5, times=1):
        error, took_s = produced(broker, topic)
    assert (error, took_s >= 0.5) == (None, True)


@pytest.mark.slow
def test_a_request_without_a_reply(broker: Broker, topic: str) -> None:
    with broker.fault("Produce", no_reply=True, times=1) as fault:
        assert produced(broker, topic, **{"socket.timeout.ms": 1000})[0] is None
        assert fault.hits == 1
    assert values(broker, topic) == [b"x"], "it was sent again"


def test_a_connection_that_hangs_is_closed_when_the_fault_heals(broker: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, **QUIET})
    with broker.fault("Produce", no_reply=True, times=1) as fault:
        producer.produce(topic, "x")
        producer.poll(0)
        fault.wait_hit()
    assert producer.flush(PATIENCE_S) == 0
    assert values(broker, topic) == [b"x"]


def test_a_connection_that_breaks_before_the_request_is_processed(broker: Broker, topic: str) -> None:
    with broker.fault("Produce", disconnect=True, times=1) as fault:
        assert produced(broker, topic)[0] is None
        assert fault.hits == 1
    assert values(broker, topic) == [b"x"]


@pytest.mark.slow
@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_lost_reply_makes_a_duplicate_unless_the_producer_is_idempotent(
    is_idempotent: bool, broker: Broker, topic: str
) -> None:
    with broker.fault("Produce", lost_reply=True, times=1) as fault:
        assert produced(broker, topic, **{"enable.idempotence": is_idempotent})[0] is None
        assert fault.hits == 1
    assert values(broker, topic) == [b"x"] * (1 if is_idempotent else 2)


@pytest.mark.slow
@pytest.mark.parametrize("api", ["Produce", "ApiVersions"])
def test_a_reply_that_is_cut_off(api: str, broker: Broker, topic: str) -> None:
    """The client sends the request again on another connection."""
    with broker.fault(api, truncated_reply=True, times=1) as fault:
        assert produced(broker, topic, **{"enable.idempotence": True})[0] is None
        assert fault.hits == 1
    assert values(broker, topic) == [b"x"]


def test_a_reply_that_cannot_be_read(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    with broker.fault("Metadata", corrupt_reply=True) as fault, pytest.raises(KafkaException):
        admin.list_topics(timeout=2)
    assert fault.hits > 0
    assert topic in admin.list_topics(timeout=PATIENCE_S).topics


def test_an_acknowledgement_that_cannot_be_read(broker: Broker, topic: str) -> None:
    """librdkafka reports an error although the record is written."""
    with broker.fault("Produce", corrupt_reply=True, times=1):
        assert produced(broker, topic)[0] in ("_UNDERFLOW", "_BAD_MSG")
    assert values(broker, topic) == [b"x"]


def test_a_reply_that_throttles(broker: Broker, topic: str) -> None:
    throttled: list[float] = []
    settings: Any = {"throttle_cb": lambda event: throttled.append(event.throttle_time)}
    producer = Producer({"bootstrap.servers": broker.bootstrap, **QUIET, **settings})
    with broker.fault("Produce", throttle_s=0.3, times=1):
        producer.produce(topic, "x")
        assert producer.flush(PATIENCE_S) == 0
        producer.produce(topic, "y")
        assert producer.flush(PATIENCE_S) == 0
    assert throttled[:1] == [0.3]


def test_only_the_named_partition_is_affected(broker: Broker) -> None:
    topic = broker.topic("two", partitions=2)
    with broker.fault("Produce", error="TOPIC_AUTHORIZATION_FAILED", topic=topic, partition=1) as fault:
        for partition in (0, 1):
            errors: list[Any] = []
            producer = Producer({"bootstrap.servers": broker.bootstrap, **QUIET})
            producer.produce(topic, "x", partition=partition, on_delivery=lambda error, _, to=errors: to.append(error))
            assert producer.flush(PATIENCE_S) == 0
            assert [error is not None for error in errors] == [partition == 1]
        assert fault.hits == 1
    assert [record.partition for record in broker.records(topic)] == [0]


def test_a_commit_that_fails(broker: Broker, topic: str) -> None:
    group = broker.group()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "log_level": 0})
    with broker.fault("OffsetCommit", error="UNKNOWN_MEMBER_ID", group=group):
        with pytest.raises(KafkaException, match="UNKNOWN_MEMBER_ID"):
            consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        assert broker.committed(group, topic) == {}
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    assert broker.committed(group, topic) == {0: 1}
    consumer.close()


@pytest.mark.slow
def test_only_the_named_client_is_affected(broker: Broker, topic: str) -> None:
    with broker.fault("Metadata", disconnect=True, client_id="other"):
        AdminClient({"bootstrap.servers": broker.bootstrap, "client.id": "one"}).list_topics(timeout=PATIENCE_S)
        other = AdminClient({"bootstrap.servers": broker.bootstrap, "client.id": "other", "log_level": 0})
        with pytest.raises(KafkaException):
            other.list_topics(timeout=1)
    assert other.list_topics(timeout=PATIENCE_S).brokers


def test_some_of_many_requests(broker: Broker, topic: str) -> None:
    """With a probability of one half, neither all nor none of 100 requests (this fails once in 2^99 runs)."""
    with broker.fault("Metadata", delay_s=0.001, probability=0.5, client_id="some") as fault:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "client.id": "some"})
        for _ in range(100):
            admin.list_topics(timeout=PATIENCE_S)
        assert 0 < fault.hits < 100


@pytest.mark.slow
def test_requests_of_brokers_are_not_affected() -> None:
    """Followers fetch, and the controller receives heartbeats: otherwise no record could be acknowledged with
    acks=all."""
    with Cluster(config={"min.insync.replicas": 3}) as cluster:
        topic = cluster.topic(create=True)
        with (
            cluster.fault("Fetch", disconnect=True) as fetch,
            cluster.fault("Metadata", delay_s=0.001, node=2) as at_one,
        ):
            assert produced(cluster, topic, acks="all")[0] is None
            consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0})
            consumer.assign([TopicPartition(topic, 0, 0)])
            assert consumer.poll(0.5) is None
            fetch.wait_hit()
            AdminClient({"bootstrap.servers": cluster.bootstrap_of(2), "log_level": 0}).list_topics(timeout=PATIENCE_S)
            hits = at_one.hits
            assert hits > 0
            cluster.kill(2)
            assert at_one.hits >= hits, "those before the end of the broker count"
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        consumer.close()


def test_a_fault_that_is_not_hit_fails_the_test(broker: Broker) -> None:
    with (
        broker.fault("JoinGroup", error="UNKNOWN_MEMBER_ID") as fault,
        pytest.raises(AssertionError, match="the fault of JoinGroup was hit 0 times within 0 s, not 1"),
    ):
        fault.wait_hit(timeout_s=0)


@pytest.mark.parametrize(
    ("api", "what", "told"),
    [
        ("Produkt", {"disconnect": True}, "no client sends 'Produkt' requests; did you mean Produce"),
        ("Vote", {"disconnect": True}, "no client sends 'Vote' requests"),
        ("Produce", {}, "lost_reply, truncated_reply and corrupt_reply, not none"),
        ("Produce", {"delay_s": 1, "no_reply": True}, "not delay_s and no_reply"),
        ("Produce", {"error": "NOT_LEADER"}, "Kafka has no error 'NOT_LEADER'; did you mean NOT_LEADER_OR_FOLLOWER"),
        ("Produce", {"error": "NONE"}, "Kafka has no error 'NONE'"),
        ("Produce", {"error": 6}, "error=6 is not of type str"),
        ("Produce", {"disconnect": True, "group": "g"}, "Produce requests name no group, so group='g' can never match"),
        ("JoinGroup", {"disconnect": True, "topic": "t"}, "JoinGroup requests name no topic"),
        ("Fetch", {"disconnect": True, "topic": "t"}, "only once per session; use client_id instead of topic"),
        ("Produce", {"disconnect": True, "topic": ""}, "topic='' is not the name of a topic"),
        ("Produce", {"disconnect": True, "times": 0}, "times=0: this fault can never affect a request"),
        ("Produce", {"disconnect": True, "skip": -1}, "skip=-1: must be from 0"),
        ("Produce", {"disconnect": True, "probability": 0}, "probability=0: must be above 0"),
        ("Produce", {"disconnect": True, "probability": float("nan")}, "probability=nan: must be above 0"),
        ("Produce", {"eror": "INVALID_RECORD"}, "a fault has no 'eror'; did you mean error?"),
        ("Produce", {"disconect": True}, "a fault has no 'disconect'; did you mean disconnect?"),
        ("Produce", {"delay_s": 0}, "a delay fault needs a time"),
        ("Produce", {"delay_s": -1}, "delay_ms=-1000: must be from 0 to 3600000"),
        ("Produce", {"delay_s": float("inf")}, "delay_s=inf: give a finite number of seconds"),
        ("Produce", {"throttle_s": float("nan")}, "throttle_s=nan: give a finite number of seconds"),
        ("Produce", {"disconnect": True, "parttion": 1}, "a fault has no 'parttion'; did you mean partition"),
        ("Produce", {"disconnect": True, "partition": -1}, "partition=-1: must be from 0"),
        ("Produce", {"disconnect": True, "partition": "1"}, "partition='1' is not of type int"),
        ("Metadata", {"disconnect": True, "partition": 1}, "Metadata requests name no partition"),
        ("JoinGroup", {"disconnect": True, "partition": 1}, "JoinGroup requests name no"),
        ("Fetch", {"disconnect": True, "partition": 1}, "use client_id instead of topic"),
        ("Produce", {"throttle_s": -1}, "delay_ms=-1000: must be from 0"),
        ("SaslHandshake", {"throttle_s": 1}, "SaslHandshake responses have no throttle time"),
    ],
)
def test_a_fault_that_can_never_match_is_refused(api: str, what: dict[str, Any], told: str, broker: Broker) -> None:
    with pytest.raises(ValueError, match=told), broker.fault(api, **what):
        pass


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"disconnect": "no"}, "disconnect='no': give True or False"),
        ({"disconnect": True, "topic": b"x"}, "topic=b'x': give text or a number, not bytes"),
        ({"full": 1}, "full=1: give True or False"),
        ({"full": True, "topic": b"x"}, "topic=b'x': give text or a number, not bytes"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused(what: dict[str, Any], told: str, broker: Broker) -> None:
    fault = broker.disk_fault(**what) if "full" in what else broker.fault("Produce", **what)
    with pytest.raises(TypeError, match=re.escape(told)), fault:
        pass


def test_a_time_that_is_no_number_is_refused(broker: Broker) -> None:
    delay: dict[str, Any] = {"delay_s": "1s"}
    with pytest.raises(TypeError, match="delay_s='1s': give a number of seconds"), broker.fault("Produce", **delay):
        pass
    slow: dict[str, Any] = {"slow_s": "1"}
    with pytest.raises(TypeError, match="slow_s='1': give a number of seconds"), broker.disk_fault(**slow):
        pass


@pytest.mark.slow
def test_a_broker_that_does_not_run_takes_no_faults() -> None:
    with Broker() as broker:
        broker.pause()
        with pytest.raises(RuntimeError, match="broker 1 is paused, so it takes no commands"):
            broker.fault("Produce", disconnect=True).__enter__()
        broker.stop()
        with pytest.raises(RuntimeError, match="broker 1 is stopped, so it takes no commands"):
            broker.fault("Produce", disconnect=True).__enter__()


@pytest.mark.slow
@pytest.mark.parametrize("in_thread", [False, True])
def test_a_fault_heals_at_a_paused_broker_when_it_continues(in_thread: bool) -> None:
    with Broker(in_thread=in_thread) as broker:
        topic = broker.topic(create=True)
        with broker.fault("Produce", disconnect=True) as fault:
            broker.pause()
            assert fault.hits == 0
        broker.resume()
        assert produced(broker, topic)[0] is None
        assert fault.hits == 0


@pytest.mark.parametrize("which", ["group", "topic", "partition"])
def test_a_request_of_several_groups_is_found_by_what_it_names(which: str, broker: Broker, topic: str) -> None:
    """librdkafka sends OffsetFetch from version 8 on, with the topics of each group."""
    group = broker.group()
    names: dict[str, Any] = {"group": group, "topic": topic, "partition": 0}
    scope = {which: names[which]}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "log_level": 0})
    with (
        broker.fault("OffsetFetch", error="UNKNOWN_TOPIC_OR_PARTITION", topic=topic, group="another") as another,
        broker.fault("OffsetFetch", error="GROUP_AUTHORIZATION_FAILED", **scope) as fault,
    ):
        with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
            consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)
        assert (fault.hits, another.hits) == (1, 0)
    assert consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)[0].error is None
    consumer.close()


def test_a_deletion_is_found_by_the_name_of_its_topic(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    with broker.fault("DeleteTopics", error="TOPIC_DELETION_DISABLED", topic=topic) as fault:
        with pytest.raises(KafkaException, match="TOPIC_DELETION_DISABLED"):
            admin.delete_topics([topic])[topic].result(PATIENCE_S)
        assert fault.hits == 1


def test_a_throttled_producer_without_acknowledgement_goes_on(broker: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": 0, "linger.ms": 0, **QUIET})
    with broker.fault("Produce", throttle_s=0.01, topic=topic) as fault:
        for number in range(5):
            producer.produce(topic, str(number), partition=0)
            assert producer.flush(PATIENCE_S) == 0
        assert [record.value for record in broker.expect(topic, 5)] == [b"%d" % number for number in range(5)]
        assert fault.hits > 0


@pytest.mark.slow
@pytest.mark.parametrize("in_thread", [False, True])
def test_a_fault_lasts_over_a_restart(in_thread: bool) -> None:
    """Its hits before the restart count towards `times`."""
    with Broker(in_thread=in_thread) as broker:
        topic = broker.topic(create=True)
        with broker.fault("Produce", error="TOPIC_AUTHORIZATION_FAILED", skip=1, times=3) as fault:
            refused = [produced(broker, topic)[0] for _ in range(2)]
            broker.restart()
            assert fault.hits == 1
            refused += [produced(broker, topic)[0]]
            broker.kill()
            broker.start()
            refused += [produced(broker, topic)[0] for _ in range(2)]
            assert fault.hits == 3
            broker.restart()
            refused += [produced(broker, topic)[0]]
        broker.restart()
        assert produced(broker, topic)[0] is None
    assert refused == [None, *["TOPIC_AUTHORIZATION_FAILED"] * 3, None, None]
    assert fault.hits == 3


@pytest.mark.slow
@pytest.mark.parametrize("in_thread", [False, True])
def test_a_broker_that_is_started_within_the_block_gets_the_fault(in_thread: bool) -> None:
    """A fault of all brokers waits for those that are stopped; for one alone, it is refused."""
    with Cluster(3, in_thread=in_thread) as cluster:
        topic = cluster.topic(partitions=1)
        cluster.kill(2)
        with cluster.fault("Produce", error="INVALID_RECORD") as fault, cluster.weather("slow_disk"):
            cluster.start(2)
            cluster.move_leader(topic, 0, 2)
            assert produced(cluster, topic)[0] == "INVALID_RECORD"
            assert fault.hits == 1
        cluster.kill()
        with pytest.raises(RuntimeError, match="no broker runs"), cluster.fault("Produce", disconnect=True):
            pass


def test_there_is_a_limit_of_faults(with_broker: WithBroker) -> None:
    command = b'{"do": "fault", "api": "Produce", "kind": "disconnect", "topic": "another"}'

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        for number in range(1, FAULTS_MAX + 1):
            assert json.loads(await execute(node.server, command)) == {"fault": number}
        refused = json.loads(await execute(node.server, command))["refused"]
        assert refused == f"there are {FAULTS_MAX} faults already; remove some"
        await put(peer, "t", b"x")  # all are looked at, and none matches
        for number in range(1, FAULTS_MAX + 1):
            assert json.loads(await execute(node.server, b'{"do": "heal", "fault": %d}' % number)) == {"hits": 0}
        assert not node.server.faults.is_active

    with_broker(scenario)


@pytest.mark.parametrize("line", [b"", b"[]", b"{", b'{"do": "dance"}', b'{"do": "heal", "fault": 9}', b"\xff"])
def test_a_command_that_cannot_be_read_is_refused(line: bytes, with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        assert json.loads(await execute(node.server, line)).keys() == {"refused"}
        assert not node.server.faults.is_active

    with_broker(scenario)


@pytest.mark.parametrize("api", [api for api in API if api.audience is not Audience.BROKER], ids=lambda api: api.name)
def test_every_request_of_clients_can_get_an_error(api: Api) -> None:
    """The response has the error in every version, and can be encoded if the request names nothing. Some old
    versions have no field for it."""
    without_field = {"DescribeLogDirs": 2, "OffsetFetch": 1}.get(api.name, -1)
    rule = rule_of({"api": api.name, "kind": "error", "error": "KAFKA_STORAGE_ERROR"})
    for version in range(api.min, api.max + 1):
        request, empty = one_of_each(layout(api.request, version)), api.request()
        if api.name == "Produce":  # one with acks=0 has no response
            request.acks = empty.acks = -1
        assert encode_response(1, api, version, refused(api, empty, KafkaError(rule.error, "text")))
        encoded = b"".join(encode_response(1, api, version, refused(api, request, KafkaError(rule.error, "text"))))
        frame = memoryview(encoded)[4:]
        _, body_at = parse_response_header(frame, api, version)
        told = errors_in(as_plain(parse(api.response, version, frame, body_at), version))
        assert told == ([] if version <= without_field else ["KAFKA_STORAGE_ERROR"]), version


def one_of_each(piece: Piece) -> Any:
    """A request in which each list has one element."""
    if isinstance(piece, Struct):
        return piece.cls(**{name: one_of_each(member) for name, member in piece.members})
    if isinstance(piece, Array):
        return [one_of_each(piece.element)]
    if isinstance(piece, Fixed):
        return bytes(range(16)) if piece.code == UUID else 1
    return "x" if isinstance(piece, Text) else b"x"
