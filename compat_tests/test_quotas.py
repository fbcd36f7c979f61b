"""Tests of client quotas: Kafka's tool sets them, stock clients are throttled, and clients that wait stay within their
quotas."""

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from compat_tests.conftest import Running, start_target
from kpybroker.errors import ErrorCode
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import alter_client_quotas, create_topics, describe_client_quotas, fetch, produce
from oracle.asking import Conversation
from oracle.tools import Ran, tool

KB = 1000
RATE = 100 * KB
AT_ONCE = 10 * RATE
"""The burst of a client that was idle: the rate is measured over the last ten seconds at least (eleven samples of one
second)."""
TOPIC = "limited"
RAW = "oracle"
"""The client id of `oracle.asking`."""


@pytest.fixture(scope="module")
def broker(target_name: str) -> Iterator[Running]:
    """A separate broker, so that other tests are not throttled."""
    with start_target(target_name) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
        yield broker


@pytest.fixture
def raw(broker: Running) -> Iterator[Conversation]:
    host, _, port = broker.bootstrap.rpartition(":")
    with contextlib.closing(Conversation((host, int(port)), timeout_s=30)) as conversation:
        yield conversation


def configs(broker: Running, *args: str) -> Ran:
    return tool("kafka-configs", *args, bootstrap=broker.bootstrap)


def described(broker: Running, *entity: str) -> str:
    return configs(broker, "--describe", *entity).ok()


def limit(raw: Conversation, kind: str, name: str | None, key: str, value: float | None) -> None:
    """Set or remove a quota, and wait until the broker has applied the change."""
    rpc = alter_client_quotas
    entity = [rpc.EntityData(entity_type=kind, entity_name=name)]
    change = rpc.EntryData(entity=entity, ops=[rpc.OpData(key=key, value=value or 0.0, remove=value is None)])
    told = raw.ask("AlterClientQuotas", 1, rpc.Request(entries=[change]), rpc.Response)
    assert told.entries[0].error_code == 0, told.entries[0].error_message
    wanted = describe_client_quotas
    how = wanted.ComponentData(entity_type=kind, match_type=1 if name is None else 0, match=name)
    while True:
        shown = raw.ask("DescribeClientQuotas", 1, wanted.Request(components=[how], strict=True), wanted.Response)
        values = {each.key: each.value for entry in shown.entries for each in entry.values}
        if values.get(key) == value:
            return


def produced(size_bytes: int) -> produce.Request:
    records = bytes(encode_batch([(None, bytes(size_bytes))], timestamp_ms=round(time.time() * 1000)))
    data = produce.PartitionProduceData(index=0, records=records)
    topic = produce.TopicProduceData(name=TOPIC, partition_data=[data])
    return produce.Request(acks=1, timeout_ms=5000, topic_data=[topic])


def fetched(offset: int) -> fetch.Request:
    partition = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=100 * KB)
    topic = fetch.FetchTopic(topic=TOPIC, partitions=[partition])
    return fetch.Request(max_wait_ms=0, min_bytes=1, max_bytes=10 << 20, session_epoch=-1, topics=[topic])


@pytest.mark.parametrize(
    ("kind", "name", "given"),
    [
        ("users", "ann", "producer_byte_rate=1024,consumer_byte_rate=2048"),
        ("clients", "one", "request_percentage=12.5"),
        ("ips", "10.0.0.1", "connection_creation_rate=7"),
    ],
)
def test_the_tool_sets_shows_and_removes_quotas(broker: Running, kind: str, name: str, given: str) -> None:
    keys = ",".join(each.partition("=")[0] for each in given.split(","))
    for entity in (("--entity-type", kind, "--entity-name", name), ("--entity-type", kind, "--entity-default")):
        assert "Completed updating" in configs(broker, "--alter", *entity, "--add-config", given).ok()
        shown = described(broker, *entity)
        for each in given.split(","):
            assert each in shown
        assert described(broker, "--entity-type", kind).count(keys.partition(",")[0]) == 1
        assert "Completed updating" in configs(broker, "--alter", *entity, "--delete-config", keys).ok()
        assert keys.partition(",")[0] not in described(broker, *entity)


def test_the_tool_reports_errors(broker: Running) -> None:
    ann = ("--entity-type", "users", "--entity-name", "ann")
    for entity, given, why in (
        (ann, "producer_byte_rate=0", "must be greater than 0"),
        (ann, "producer_byte_rate=1.5", "cannot be a fractional value"),
        (("--entity-type", "ips", "--entity-name", "10.0.0.300"), "connection_creation_rate=5", "must be a valid IP"),
    ):
        told = configs(broker, "--alter", *entity, "--add-config", given)
        assert told.code != 0
        assert why in told.out + told.err


def test_a_user_and_its_clients(broker: Running) -> None:
    both = ("--entity-type", "users", "--entity-name", "ann", "--entity-type", "clients", "--entity-default")
    configs(broker, "--alter", *both, "--add-config", "producer_byte_rate=5").ok()
    assert "producer_byte_rate=5" in configs(broker, "--describe", *both).ok()
    configs(broker, "--alter", *both, "--delete-config", "producer_byte_rate").ok()


def test_a_producer_is_answered_at_once_and_then_not_read(raw: Conversation) -> None:
    limit(raw, "client-id", RAW, "producer_byte_rate", RATE)
    assert raw.ask("Produce", 9, produced(10), produce.Response).throttle_time_ms == 0
    too_much = [raw.ask("Produce", 9, produced(800 * KB), produce.Response) for _ in range(2)]
    wait_ms = too_much[-1].throttle_time_ms
    assert too_much[0].throttle_time_ms == 0
    assert too_much[1].responses[0].partition_responses[0].error_code == 0
    assert wait_ms > 5000
    began = time.monotonic()
    limit(raw, "client-id", RAW, "producer_byte_rate", None)
    assert time.monotonic() - began > wait_ms / 1000 - 0.5


def put(raw: Conversation, size_bytes: int) -> int:
    """Produce one record of this size. Returns the offset."""
    told = raw.ask("Produce", 9, produced(size_bytes), produce.Response)
    return int(told.responses[0].partition_responses[0].base_offset)


def test_a_throttled_consumer_gets_empty_responses(raw: Conversation) -> None:
    first, second = put(raw, 700 * KB), put(raw, 700 * KB)
    limit(raw, "client-id", RAW, "consumer_byte_rate", RATE)
    told = raw.ask("Fetch", 12, fetched(first), fetch.Response)
    assert told.throttle_time_ms == 0
    assert len(told.responses[0].partitions[0].records) > 700 * KB
    told = raw.ask("Fetch", 12, fetched(second), fetch.Response)
    assert told.throttle_time_ms > 0
    assert told.responses == []
    limit(raw, "client-id", RAW, "consumer_byte_rate", None)
    assert raw.ask("Fetch", 12, fetched(second), fetch.Response).responses[0].partitions[0].records


def topics(*names: str, partitions: int = 1, validate_only: bool = False) -> create_topics.Request:
    wanted = [
        create_topics.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names
    ]
    return create_topics.Request(topics=wanted, timeout_ms=30_000, validate_only=validate_only)


def test_partitions_are_created_at_a_rate(raw: Conversation) -> None:
    limit(raw, "user", None, "controller_mutation_rate", 2.0)

    def codes(request: Any, version: int = 7) -> tuple[set[int], int]:
        told = raw.ask("CreateTopics", version, request, create_topics.Response)
        return {topic.error_code for topic in told.topics}, told.throttle_time_ms

    assert codes(topics("q-looked-at", partitions=24, validate_only=True)) == ({0}, 0)
    refused, wait_ms = codes(topics("q-a"))
    assert refused == {ErrorCode.THROTTLING_QUOTA_EXCEEDED}, "validation costs as much as creation"
    assert 0 < wait_ms <= 1000
    found, _ = codes(topics("q-b", "q-c"))
    assert found <= {0, ErrorCode.THROTTLING_QUOTA_EXCEEDED}
    lenient, wait_ms = codes(topics("q-old", partitions=4), version=5)
    assert (lenient, wait_ms > 0) == ({0}, True)
    limit(raw, "user", None, "controller_mutation_rate", None)


def test_connections_of_an_address_come_at_a_rate(broker: Running, raw: Conversation) -> None:
    host, _, port = broker.bootstrap.rpartition(":")
    limit(raw, "ip", host, "connection_creation_rate", 1.0)
    closed = 0
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            connection.settimeout(0.01)
            with contextlib.suppress(TimeoutError):
                closed += connection.recv(1) == b""
        deadline = time.monotonic() + 30
        while not closed and time.monotonic() < deadline:
            connection.settimeout(5)
            closed += connection.recv(1) == b""
    assert closed
    limit(raw, "ip", host, "connection_creation_rate", None)


def test_librdkafka_is_held_to_its_rate(broker: Running, raw: Conversation) -> None:
    limit(raw, "client-id", "quick", "producer_byte_rate", RATE)
    throttled: list[float] = []
    settings = {"bootstrap.servers": broker.bootstrap, "client.id": "quick", "batch.size": 200 * KB}
    producer = Producer({**settings, "throttle_cb": lambda event: throttled.append(event.throttle_time)})
    began = time.monotonic()
    for _ in range(130):
        producer.produce(TOPIC, bytes(10 * KB))
        producer.poll(0)
    assert producer.flush(60) == 0
    assert time.monotonic() - began > (130 * 10 * KB - AT_ONCE - 300 * KB) / RATE
    producer.poll(1)
    assert any(wait_s > 0 for wait_s in throttled)
    limit(raw, "client-id", "quick", "producer_byte_rate", None)


def test_a_librdkafka_consumer_gets_everything_later(broker: Running, raw: Conversation) -> None:
    offsets = [put(raw, 100 * KB) for _ in range(16)]
    limit(raw, "client-id", "reader", "consumer_byte_rate", RATE)
    small = {"fetch.max.bytes": 250 * KB, "message.max.bytes": 200 * KB, "max.partition.fetch.bytes": 200 * KB}
    # Apache Kafka never sends a response that is larger than the quota allows in ten seconds
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "client.id": "reader", "group.id": "unused", **small})
    began = time.monotonic()
    consumer.assign([TopicPartition(TOPIC, 0, offsets[0])])
    found: list[int] = []
    while found[-1:] != offsets[-1:] and time.monotonic() < began + 60:
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None
            found.append(message.offset())
    took_s = time.monotonic() - began
    consumer.close()
    assert found == offsets
    # the consumer need not wait for the end of the throttle time of the last response, which is at most 300 KB
    assert took_s > (len(offsets) * 100 * KB - AT_ONCE - 300 * KB) / RATE, "it was not throttled"
    limit(raw, "client-id", "reader", "consumer_byte_rate", None)


def test_java_and_kafka_python_are_throttled(
    broker: Running, raw: Conversation, caplog: pytest.LogCaptureFixture
) -> None:
    for client in ("perf-producer-client", "python"):
        limit(raw, "client-id", client, "producer_byte_rate", 20 * KB)
    ran = tool(
        "kafka-producer-perf-test",
        *("--topic", TOPIC, "--num-records", "24", "--record-size", str(10 * KB), "--throughput", "-1"),
        *("--bootstrap-server", broker.bootstrap, "--print-metrics"),
        *("--command-property", "client.id=perf-producer-client", "--command-property", "batch.size=50000"),
    ).ok()
    [line] = [line for line in ran.splitlines() if "produce-throttle-time-max" in line]
    assert float(line.rsplit(":", 1)[1]) > 0
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, client_id="python")
    for _ in range(24):
        producer.send(TOPIC, bytes(10 * KB))
    producer.flush(60)
    producer.close()
    assert "throttled by broker" in caplog.text
    for client in ("perf-producer-client", "python"):
        limit(raw, "client-id", client, "producer_byte_rate", None)
