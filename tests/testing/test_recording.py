"""Tests recordings as users see them: they contain what stock clients do, and can be searched, saved and replayed."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kpybroker.client import recorded
from kpybroker.client.recorded import Filter, RecordedRequest
from kpybroker.server.requests.recorder import TAPES_MAX
from kpybroker.testing import Broker, Cluster, Recording, wire
from kpybroker.testing.node_process import NodeProcess, ReadyFacts
from kpybroker.wire.plain import uuid_text

PATIENCE_S = 30


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.topic(create=True)


def send(broker: Cluster, topic: str, client_id: str = "shop", **settings: Any) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "client.id": client_id, "log_level": 0, "linger.ms": 0, **settings}
    )
    producer.produce(topic, b"paid")
    assert producer.flush(PATIENCE_S) == 0


def commit(broker: Cluster, topic: str, group: str) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()


def test_requests_are_found(broker: Broker, topic: str) -> None:
    other = broker.topic(create=True)
    with broker.record() as recording:
        send(broker, topic)
        send(broker, other, client_id="other")
    (produce,) = recording.requests("Produce", topic=topic)
    assert (produce.client_id, produce.topics, produce.node, produce.outcome) == ("shop", [topic], 1, "ok")
    assert produce.fields["acks"] == -1
    assert produce.response_fields is not None
    assert produce.response_fields["responses"][0]["partition_responses"][0]["base_offset"] == 0
    assert recording.requests("Produce", client_id="other") == recording.requests("Produce", topic=other)
    assert len(recording.requests("Produce")) == len(recording.requests("Produce", node=1)) == 2
    refused: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "node=2: this recording is of broker 1", {"node": 2}),
        (TypeError, "requests cannot be chosen by 'topc'; did you mean topic?", {"topc": topic}),
        (TypeError, "topic=b'x': give text, not bytes", {"topic": b"x"}),
        (TypeError, "where=5: give a function of a request", {"where": 5}),
    ]
    for kind, told, chosen in refused:
        with pytest.raises(kind, match=re.escape(told)):
            recording.requests("Produce", **chosen)
    assert recording.requests("Produce", where=lambda request: request.version < 3) == []
    assert {request.client_id for request in recording} == {"shop", "other"}
    assert len(recording) == len(recording.requests())


def test_a_topic_is_found_by_its_id(broker: Broker, topic: str) -> None:
    """Clients that read name the topic by its id."""
    broker.send(topic, "paid")
    with broker.record() as recording:
        settings = {"group.id": broker.group(), "fetch.wait.max.ms": 10, "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, **settings})
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert consumer.poll(PATIENCE_S) is not None
        consumer.close()
    fetch = recording.requests("Fetch")[0]
    assert fetch.topic_ids
    assert fetch.topics == [topic]


def test_an_expected_request_is_awaited(broker: Broker, topic: str) -> None:
    group = broker.group()
    with broker.record() as recording, broker.fault("OffsetCommit", delay_s=0.2, group=group):
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=True)
        (request,) = recording.expect("OffsetCommit", group=group, topic=topic)
        consumer.close()
    assert request.outcome == "ok"
    assert request.groups == [group]


def test_an_expected_request_without_an_answer(broker: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    with broker.record() as recording, broker.fault("Produce", no_reply=True, times=1):
        producer.produce(topic, b"x")
        producer.poll(0)
        (request,) = recording.expect("Produce", answered=False)
        assert request.outcome == "no response"
        assert request.response_fields is None
        with pytest.raises(
            AssertionError, match="expected 1 Produce within 0 s, found 0; the last requests of Produce"
        ):
            recording.expect("Produce", timeout_s=0)
    assert producer.flush(PATIENCE_S) == 0


def test_what_is_not_expected_fails_the_test(broker: Broker, topic: str) -> None:
    with broker.record() as recording:
        send(broker, topic)
        recording.none("JoinGroup")
        recording.none("Produce", topic="another")
        with pytest.raises(
            AssertionError, match=r"expected no Produce with topic=.*, found 1:\nTIME .*\n.*shop.*Produce"
        ):
            recording.none("Produce", topic=topic)
    with pytest.raises(AssertionError, match="expected 2 Produce with client_id='shop', found 1; the last requests of"):
        recording.expect("Produce", count=2, client_id="shop")
    with pytest.raises(AssertionError, match="expected 1 JoinGroup, found 0; the last requests:\nTIME"):
        recording.expect("JoinGroup")
    with broker.record() as empty:
        pass
    with pytest.raises(AssertionError, match="found 0; no request was recorded"):
        empty.expect("JoinGroup")


def test_errors_of_faults_are_recorded(broker: Broker, topic: str) -> None:
    group = broker.group()
    with broker.record() as recording:
        with broker.fault("OffsetCommit", error="UNKNOWN_MEMBER_ID", group=group), pytest.raises(KafkaException):
            commit(broker, topic, group)
        with broker.fault("Metadata", disconnect=True, client_id="other"):
            other = AdminClient({"bootstrap.servers": broker.bootstrap, "client.id": "other", "log_level": 0})
            with pytest.raises(KafkaException):
                other.list_topics(timeout=0.2)
    (refused,) = recording.requests("OffsetCommit", error="UNKNOWN_MEMBER_ID")
    assert (refused.error, refused.errors) == ("UNKNOWN_MEMBER_ID", ["UNKNOWN_MEMBER_ID"])
    dropped = recording.requests("Metadata", client_id="other")
    assert dropped
    assert {each.outcome for each in dropped} == {"the connection was closed"}


def test_the_last_requests_are_always_there(broker: Broker, topic: str) -> None:
    send(broker, topic)
    (produce,) = (request for request in broker.requests if request.topics == [topic] and request.api == "Produce")
    assert produce.outcome == "ok"


def look(broker: Cluster, client_id: str) -> None:
    """Send a Metadata request to each broker."""
    for address in broker.bootstrap.split(","):
        admin = AdminClient({"bootstrap.servers": address, "client.id": client_id, "log_level": 0})
        admin.list_topics(timeout=PATIENCE_S)


@pytest.mark.slow
def test_a_recording_continues_after_a_restart() -> None:
    phases = ["begun", "killed", "stopped", "resumed"]
    with Cluster(2) as cluster:
        with cluster.record() as recording, cluster.record(node=2) as at_two:
            look(cluster, "begun")
            cluster.kill()
            cluster.start()
            look(cluster, "killed")
            cluster.restart()
            look(cluster, "stopped")
            cluster.pause(1)
            assert len(recording) > 0
            cluster.resume(1)
            look(cluster, "resumed")
        look(cluster, "ended")
    found = {(request.client_id, request.node) for request in recording.requests("Metadata")}
    assert found == {(phase, node) for phase in phases for node in (1, 2)}
    found = {(request.client_id, request.node) for request in at_two.requests("Metadata")}
    assert found == {(phase, 2) for phase in phases}


@pytest.mark.slow
def test_a_recording_keeps_what_came_before_each_restart_of_a_thread() -> None:
    phases = ["first", "second", "third"]
    with Broker(in_thread=True) as broker:
        with broker.record() as recording:
            for phase in phases:
                look(broker, phase)
                broker.restart()
        assert {request.client_id for request in recording.requests("Metadata")} == set(phases)


@pytest.mark.slow
def test_a_recording_ends_at_a_paused_broker_when_it_continues() -> None:
    with Broker() as broker:
        for _ in range(TAPES_MAX + 1):
            with broker.record():
                broker.pause()
            broker.resume()


@pytest.mark.slow
def test_a_recording_has_what_came_before_it_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a start, clients may be faster than the test kit."""
    wait = NodeProcess.wait_until_ready

    def send_first(node: NodeProcess) -> ReadyFacts:
        facts = wait(node)
        AdminClient({"bootstrap.servers": facts.bootstrap, "client.id": "first"}).list_topics(timeout=PATIENCE_S)
        return facts

    with Broker() as broker, broker.record() as recording:
        broker.kill()
        monkeypatch.setattr(NodeProcess, "wait_until_ready", send_first)
        broker.start()
        assert recording.requests("Metadata", client_id="first")


@pytest.mark.slow
def test_a_broker_that_does_not_run_is_not_recorded() -> None:
    with Broker() as broker:
        with broker.record() as recording:
            broker.kill()
            assert len(recording) == 0
        broker_requests = broker.requests
        assert broker_requests == []
        with pytest.raises(RuntimeError, match="no broker runs, so nothing can be recorded"):
            broker.record()


def test_there_is_a_limit_of_recordings(broker: Broker) -> None:
    recordings = [broker.record() for _ in range(TAPES_MAX)]
    with pytest.raises(ValueError, match=f"there are {TAPES_MAX} recordings already; end some"):
        broker.record()
    for recording in recordings:
        recording.end()
    with broker.record():
        pass


@pytest.mark.parametrize(
    ("api", "chosen", "told"),
    [
        ("Produkt", {}, "Kafka has no 'Produkt' requests; did you mean Produce"),
        ("Produce", {"error": "NOT_LEADER"}, "Kafka has no error 'NOT_LEADER'; did you mean NOT_LEADER_OR_FOLLOWER"),
        ("Produce", {"error": "NONE"}, "Kafka has no error 'NONE'"),
        ("Produce", {"group": "g"}, "Produce requests name no group, so group='g' can never match"),
        ("JoinGroup", {"topic": "t"}, "JoinGroup requests name no topic, so topic='t' can never match"),
        ("Fetch", {"topic": "t"}, "Fetch requests name their topics only once per session; use client_id"),
    ],
)
def test_a_filter_that_can_never_match_is_refused(api: str, chosen: dict[str, Any], told: str) -> None:
    recording = Recording()
    for method in (recording.requests, recording.expect, recording.none, recording.table):
        with pytest.raises(ValueError, match=told):
            method(api, **chosen)


def request_of(**facts: Any) -> RecordedRequest:
    given = {
        "node": 1,
        "number": 1,
        "connection": 1,
        "address": "127.0.0.1:1",
        "principal": "User:ANONYMOUS",
        "at_us": 1_700_000_000_000_000,
        "duration_us": 1234,
        "request": bytes.fromhex("0012000000000001ffff"),
        "request_bytes": 10,
        "response": bytes.fromhex("000000010023 00000000".replace(" ", "")),
        "response_bytes": 10,
    }
    return RecordedRequest(**(given | facts))


def test_a_table_has_a_line_for_each_request() -> None:
    newer = bytes.fromhex("0012006300000001ffff00")
    unknown = bytes.fromhex("7fff000000000001ffff")
    requests = [
        request_of(response=bytes.fromhex("00000001000000000000")),
        request_of(request=newer),
        request_of(request=unknown),
        request_of(request=b"", duration_us=None, response=None),
        request_of(response=None, response_bytes=5000),
    ]
    lines = [line.split(maxsplit=6) for line in recorded.table_of(requests).splitlines()]
    assert lines[0] == ["TIME", "NODE", "CLIENT", "REQUEST", "ABOUT", "MS", "RESULT"]
    assert [line[3:5] for line in lines[1:]] == [
        ["ApiVersions", "v0"],
        ["ApiVersions", "v99"],
        ["api", "key"],
        ["api", "key"],
        ["ApiVersions", "v0"],
    ]
    assert [request.outcome for request in requests] == [
        "ok",
        "UNSUPPORTED_VERSION",
        "a response that cannot be parsed",
        "no response",
        "5000 bytes, not kept",
    ]


def test_a_file_keeps_a_recording(broker: Broker, topic: str, tmp_path: Path) -> None:
    with broker.record() as recording:
        send(broker, topic)
        commit(broker, topic, broker.group())
    recording.save(tmp_path / "requests")
    again = Recording.load(tmp_path / "requests")
    assert list(again) == list(recording)
    assert again.table() == recording.table()
    again.save(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "requests").read_bytes()


def test_a_file_keeps_the_names_of_topics(tmp_path: Path) -> None:
    names = {uuid_text(bytes(range(16))): "orders"}
    recorded.save(tmp_path / "requests", [request_of(topic_names=names)], names)
    (request,) = recorded.load(tmp_path / "requests")
    assert request.topic_names == names


HEADER = b'{"kpybroker_recording": 1, "topics": {}}\n'
LINE = json.dumps(request_of().as_line()).encode() + b"\n"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty; a recording begins with a header"),
        (b"\xff\n", "line 1: it is not JSON"),
        (b"[]\n", "line 1: it is not a JSON object"),
        (LINE, "line 1: it is not the header of a recording; write one with Recording.save"),
        (HEADER.replace(b"1", b"2"), "line 1: its format is 2; this kpybroker reads 1"),
        (HEADER.replace(b"{}", b"[]"), "line 1: topics is not an object"),
        (HEADER.replace(b"{}", b'{"a": 1}'), "line 1: topics is not an object"),
        (HEADER + LINE + LINE[:-1], "line 3: it is cut off, or too long"),
        (HEADER + LINE.replace(b'"node": 1', b'"node": "1"'), "line 2: node is '1', not of type int"),
        (HEADER + LINE.replace(b'"node": 1', b'"node": true'), "line 2: node is True, not of type int"),
        (HEADER + LINE.replace(b'"number"', b'"nummer"'), "line 2: number is None, not of type int"),
        (HEADER + LINE.replace(b'"ABIAAAAAAAH//w=="', b'"A"'), "line 2: request is not base64"),
    ],
)
def test_a_damaged_file_is_refused_with_the_line(content: bytes, told: str, tmp_path: Path) -> None:
    file = tmp_path / "requests"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=told):
        Recording.load(file)


def test_a_file_has_a_limit_of_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "REQUESTS_MAX", 2)
    file = tmp_path / "requests"
    recorded.save(file, [request_of()] * 2, {})
    assert len(recorded.load(file)) == 2
    with pytest.raises(ValueError, match="3 requests; a file has at most 2"):
        recorded.save(file, [request_of()] * 3, {})
    file.write_bytes(HEADER + LINE * 3)
    with pytest.raises(ValueError, match="line 4: more than 2 requests"):
        recorded.load(file)
    monkeypatch.setattr(recorded, "LINE_BYTES_MAX", len(LINE) - 1)
    with pytest.raises(ValueError, match="line 2: it is cut off, or too long"):
        recorded.load(file)


def test_a_filter_reads_as_it_is_meant() -> None:
    assert str(Filter("Produce", topic="t")) == "Produce with topic='t'"
    assert str(Filter()) == "requests"


@pytest.mark.slow
def test_a_replay_does_the_same_on_another_broker(broker: Broker, topic: str, tmp_path: Path) -> None:
    """The transactional id has a higher epoch there, the topic another id, and the group another member."""
    group = broker.group()
    with Broker() as target:
        for number, source in enumerate((target, broker)):
            recording = source.record()
            for _ in range(1 + number):
                producer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": group})
                producer.init_transactions()
            producer.begin_transaction()
            producer.produce(topic, str(number))
            producer.commit_transaction()
            settings = {"group.id": group, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
            consumer = Consumer({"bootstrap.servers": source.bootstrap, "enable.auto.commit": False, **settings})
            consumer.subscribe([topic])
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            if source is broker:
                consumer.commit(message, asynchronous=False)
            consumer.close()
            recording.end()
        recording.save(tmp_path / "requests")
        replay = Recording.load(tmp_path / "requests").replay(target.bootstrap)
        assert not replay.differences, replay.table()
        assert [record.value for record in target.records(topic, committed_only=True)] == [b"0", b"1"]
        assert target.committed(group, topic) == broker.committed(group, topic)


def test_a_replay_names_what_differs(broker: Broker, topic: str) -> None:
    with broker.record() as recording, broker.fault("Produce", error="TOPIC_AUTHORIZATION_FAILED", topic=topic):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "shop"})
        producer.produce(topic, b"x")
        assert producer.flush(PATIENCE_S) == 0
    replay = recording.replay(broker.bootstrap)
    (difference,) = replay.differences
    assert (difference.request.api, difference.outcome) == ("Produce", "ok")
    assert any(row[:1] == ("Produce",) and row[3] == 1 for row in replay.summary())
    assert "Produce v" in replay.table()
    assert "TOPIC_AUTHORIZATION_FAILED, now ok" in replay.table()


def test_a_replayed_request_is_sent_again_after_a_new_retriable_error(broker: Broker, topic: str) -> None:
    with broker.record() as recording:
        send(broker, topic)
    with broker.fault("Produce", error="NOT_LEADER_OR_FOLLOWER", times=2) as fault:
        assert not recording.replay(broker.bootstrap).differences
        assert fault.hits == 2
    assert len(broker.records(topic)) == 2


def test_leader_epochs_are_not_replayed(broker: Broker, topic: str) -> None:
    row = {"partition_index": 0, "current_leader_epoch": 99, "timestamp": -1}
    fields = {"topics": [{"name": topic, "partitions": [row]}]}
    frame = wire.encode_request("ListOffsets", 5, fields)
    response = wire.encode_response("ListOffsets", 5, {})
    request = request_of(request=frame, request_bytes=len(frame), response=response)
    (result,) = Recording((), [request]).replay(broker.bootstrap).results
    assert (result.differs, result.outcome) == (False, "ok")


def test_what_cannot_be_replayed_is_named(broker: Broker) -> None:
    def line(frame: str, **facts: Any) -> RecordedRequest:
        return request_of(request=bytes.fromhex(frame), request_bytes=len(frame) // 2, **facts)

    login = base64.b16encode(b"\0\x24\0\0\0\0\0\1\xff\xff\0\0\0\0").decode()
    requests = [
        line(login, number=1),
        line("0003000900000001ffff00", number=2),
        line("0003006300000001ffff00", number=3),
        request_of(request_bytes=11, number=4),
    ]
    replay = Recording((), requests).replay(broker.bootstrap)
    assert [result.outcome for result in replay.not_compared] == [
        "logins are not replayed",
        "it cannot be parsed",
        "it cannot be parsed",
        "it was too large to be kept",
    ]
    with Broker(api_versions={"Metadata": (1, 5)}) as older:
        request = line("0003000900000001ffff00000000000000", number=1)
        assert request.message is not None
        (result,) = Recording((), [request]).replay(older.bootstrap).results
        assert result.outcome == "the cluster does not serve v9 (v1 to v5)"
