"""Tests scheduled records with a real broker on a socket: what producers are told, what is read, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kpybroker.client.peer import Peer
from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ErrorCode
from kpybroker.scheduled.delivery_logs import CLIENT_ID
from kpybroker.server.node import Node
from kpybroker.storage.producers.producers import DELIVERY_PRODUCER
from kpybroker.topics import delivery_log_of
from kpybroker.wire import api as api_table
from kpybroker.wire.records.batch import Record, encode_batch, read_records, split
from kpybroker.wire.rpc import (
    create_partitions,
    create_topics,
    delete_topics,
    incremental_alter_configs,
    metadata,
    produce,
)
from tests.asking import make, produced
from tests.conftest import WithBroker
from tests.handlers.viewing import Reader, make_view
from tests.serving import dialled, serving

ROW = api_table.by_name["Produce"]
SCHEDULED = {"kpybroker.delivery.scheduled": "true"}
SOON = (("deliver-after", b"200ms"),)
LATER = (("deliver-after", b"1h"),)


def _batch(*records: tuple[bytes, tuple[tuple[str, bytes | None], ...]], **facts: Any) -> bytes:
    stored = [Record(0, 1000 + number, b"key", value, headers) for number, (value, headers) in enumerate(records)]
    return bytes(encode_batch(stored, **facts))


async def _send(peer: Peer, topic: str, batch: bytes, *, topic_id: bytes = b"", version: int = 9) -> Any:
    request = produced(topic, records=batch, acks=-1)
    if topic_id:
        request.topic_data[0].topic_id = topic_id
    return (await peer.ask("Produce", request, version=version)).responses[0].partition_responses[0]


def _read(node: Node, topic: str) -> list[Record]:
    """All records that a consumer can read."""
    log = node.broker.replication.hosting.leads(topic, 0).log
    found, offset = b"", log.start
    while offset < log.high_watermark:
        more = bytes(log.read(offset, 1 << 20, upper=log.high_watermark, min_one=True) or b"")
        found, offset = found + more, split(memoryview(more))[-1].next_offset
    batches = split(memoryview(found)) if found else []
    return [record for batch in batches if not batch.is_control for record in read_records(batch)]


async def _until(node: Node, topic: str, count: int) -> list[Record]:
    while len(found := _read(node, topic)) < count:
        await asyncio.sleep(0.01)
    return found


@pytest.mark.parametrize("version", range(ROW.min, ROW.max + 1))
def test_every_version_schedules_and_tells_an_offset_of_its_own(version: int, with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t", configs=SCHEDULED)
        batch = _batch((b"now", ()), (b"later", SOON), (b"past", (("deliver-at", b"5"),)))
        answer = await _send(peer, "t", batch, topic_id=topic_id, version=version)
        assert (answer.error_code, answer.base_offset) == (0, 0)
        assert [(record.offset, record.value) for record in _read(node, "t")] == [(0, b"now"), (2, b"past")]
        assert (await _send(peer, "t", _batch((b"next", ())), topic_id=topic_id, version=version)).base_offset == 3
        delivered = (await _until(node, "t", 4))[-1]
        assert delivered[:4] == (4, 1001, b"key", b"later"), "the timestamp is kept"
        headers = dict(delivered.headers)
        assert headers["deliver-offset"] == b"1", "the offset that its producer was told"
        accepted_ms = int(headers["deliver-accepted"] or b"")
        assert 0 <= node.broker.world.wall_ms() - accepted_ms < 600_000
        assert node.broker.world.wall_ms() >= accepted_ms + 200

    with_broker(scenario)


def test_a_topic_without_the_setting_does_not_look_at_the_headers(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await _send(peer, "t", _batch((b"a", LATER), (b"b", (("deliver-at", b"nonsense"),))))
        assert [record.value for record in _read(node, "t")] == [b"a", b"b"]

    with_broker(scenario)


def test_the_order_is_that_of_time_and_then_of_arrival(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topics = {codec: f"t{codec}" for codec in range(5)}
        for topic in topics.values():
            await make(peer, topic, configs=SCHEDULED)
        at = node.broker.world.wall_ms() + 3000  # later than the last request, also on a busy machine
        times = [(b"c", at + 20), (b"a", at), (b"b", at), (b"d", at + 20)]
        for codec, topic in topics.items():
            for value, due_ms in times:
                await _send(peer, topic, _batch((value, (("deliver-at", b"%d" % due_ms),)), codec=codec))
        for topic in topics.values():
            assert [record.value for record in await _until(node, topic, 4)] == [b"a", b"b", b"c", b"d"]

    with_broker(scenario)


def test_a_batch_that_is_sent_again_after_its_time_is_delivered_once(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", configs=SCHEDULED)
        facts = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
        batch = _batch(
            (b"now", ()), (b"later", (("deliver-at", b"%d" % (node.broker.world.wall_ms() + 300)),)), **facts
        )
        assert (await _send(peer, "t", batch)).base_offset == 0
        assert (await _send(peer, "t", batch)).base_offset == 0
        await _until(node, "t", 2)
        assert (await _send(peer, "t", batch)).base_offset == 0
        await _send(peer, "t", _batch((b"end", SOON)))
        assert [record.value for record in await _until(node, "t", 3)] == [b"now", b"later", b"end"]

    with_broker(scenario)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (("deliver-at", b"soon"), "deliver-at must be milliseconds since the epoch in ASCII, not 'soon'"),
        (("deliver-after", None), "deliver-after must be milliseconds, or a number with ms, s, m, h or d, not null"),
        (("deliver-after", b"9999d"), "due more than kpybroker.delivery.max.ahead.ms=31536000000 ahead"),
    ],
)
def test_what_cannot_be_scheduled_is_refused_as_a_whole(
    header: tuple[str, bytes | None], why: str, with_broker: WithBroker
) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", configs=SCHEDULED)
        answer = await _send(peer, "t", _batch((b"a", ()), (b"b", (header,))))
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert answer.error_message == f"the record cannot be scheduled: {why}"
        assert [(row.batch_index, row.batch_index_error_message) for row in answer.record_errors] == [(1, why)]
        assert _read(node, "t") == []
        assert _read(node, delivery_log_of("t")) == []

    with_broker(scenario)


async def _answers_of_many(peer: Peer, node: Node, count: int) -> list[tuple[int, str | None]]:
    """Error codes and messages of batches with one scheduled record each, sent when the one before is counted."""
    answers = []
    for number in range(count):
        answer = await _send(peer, "t", _batch((b"%d" % number, LATER)))
        answers.append((answer.error_code, answer.error_message))
        ((_, _, leader),) = node.broker.coordinators.delivery_logs
        while not answer.error_code and len(leader.state) <= number:
            await asyncio.sleep(0.01)
    return answers


def test_a_partition_has_at_most_its_maximum_of_pending_records(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", configs={**SCHEDULED, "kpybroker.delivery.max.pending": "2"})
        text = "t-0 has 2 scheduled records: at most 2 may be pending (kpybroker.delivery.max.pending)"
        assert await _answers_of_many(peer, node, 3) == [(0, None), (0, None), (ErrorCode.POLICY_VIOLATION, text)]
        assert (await _send(peer, "t", _batch((b"now", ())))).error_code == 0

    with_broker(scenario)


def test_a_broker_has_at_most_its_maximum_of_pending_records(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", configs=SCHEDULED)
        limit = "at most 1 may be pending (kpybroker.delivery.broker.max.pending)"
        text = f"the broker has 1 scheduled records: {limit}"
        assert await _answers_of_many(peer, node, 2) == [(0, None), (ErrorCode.POLICY_VIOLATION, text)]

    with_broker(scenario, {"kpybroker.delivery.broker.max.pending": "1"})


def test_clients_write_neither_to_a_delivery_log_nor_as_its_leader(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", configs=SCHEDULED)
        answer = await _send(peer, delivery_log_of("t"), _batch((b"x", ())))
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        answer = await _send(
            peer, "t", _batch((b"x", ()), producer_id=DELIVERY_PRODUCER, producer_epoch=0, base_sequence=0)
        )
        assert answer.error_code == ErrorCode.INVALID_RECORD
        host, _, port = node.bootstrap.rpartition(":")
        leader = await Peer.dial(node.broker.world.network, host, int(port), client_id=CLIENT_ID)
        await leader.negotiate()
        answer = await _send(leader, delivery_log_of("t"), _batch((b"x", ())))
        assert answer.error_code == ErrorCode.INVALID_RECORD, "what a leader could not read is refused"
        leader.close()

    with_broker(scenario)


@pytest.mark.parametrize("is_on", [True, False])
def test_deliveries_are_accepted_whatever_the_limits_of_the_topic_are_by_then(
    is_on: bool, with_broker: WithBroker
) -> None:
    """Many small records in one delivery, a large record, and records that are older than producers may send."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", configs={**SCHEDULED, "max.message.bytes": "3000"})
        at = ("deliver-at", b"%d" % (node.broker.world.wall_ms() + 1500))
        for number in range(20):
            assert (await _send(peer, "t", _batch((b"%d" % number * 200, (at,))))).error_code == 0
        await _alter(peer, "t", {"max.message.bytes": "3000000"})
        large = b"x" * 2_000_000
        assert (await _send(peer, "t", _batch((large, (at,))))).error_code == 0
        limits = {
            "max.message.bytes": "100",
            "message.timestamp.before.max.ms": "1000",
            "segment.bytes": str(1 << 20),
        }
        await _alter(peer, "t", limits if is_on else {**limits, **dict.fromkeys(SCHEDULED, "false")})
        assert (await _send(peer, "t", _batch((b"x" * 200, ())))).error_code == ErrorCode.MESSAGE_TOO_LARGE
        found = await _until(node, "t", 21)
        assert [record.value for record in found] == [*(b"%d" % number * 200 for number in range(20)), large]

    with_broker(scenario)


def test_a_large_request_is_appended_in_slices(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", partitions=12, configs=SCHEDULED)
        request = produced("t", records=b"", acks=-1)
        request.topic_data[0].partition_data = [
            produce.PartitionProduceData(index=index, records=_batch((b"x" * 900_000, ()), (b"%d" % index, SOON)))
            for index in range(12)
        ]
        told = (await peer.ask("Produce", request, version=9)).responses[0].partition_responses
        assert [(answer.index, answer.error_code, answer.base_offset) for answer in told] == [
            (index, 0, 0) for index in range(12)
        ]
        for index in range(12):
            log = node.broker.replication.hosting.leads("t", index).log
            while log.high_watermark < 3:
                await asyncio.sleep(0.01)

    with_broker(scenario)


def test_only_false_ends_it(with_broker: WithBroker) -> None:
    """Without the setting, a topic with a delivery log goes on: Apache Kafka drops the setting from its snapshots."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", configs=SCHEDULED)
        await _alter(peer, "t", dict.fromkeys(SCHEDULED))
        await _send(peer, "t", _batch((b"a", SOON)))
        assert _read(node, "t") == []
        await _alter(peer, "t", dict.fromkeys(SCHEDULED, "false"))
        await _send(peer, "t", _batch((b"b", LATER)))
        assert [record.value for record in await _until(node, "t", 2)] == [b"b", b"a"]

    with_broker(scenario)


async def _alter(peer: Peer, topic: str, settings: Mapping[str, str | None]) -> None:
    """Set some of a topic's settings, and remove those whose value is None."""
    changes = [
        incremental_alter_configs.AlterableConfig(name=name, value=value, config_operation=int(value is None))
        for name, value in settings.items()
    ]
    row = incremental_alter_configs.AlterConfigsResource(
        resource_type=ResourceType.TOPIC, resource_name=topic, configs=changes
    )
    told = await peer.ask("IncrementalAlterConfigs", incremental_alter_configs.Request(resources=[row]))
    assert told.responses[0].error_code == 0, told.responses[0].error_message


async def _failures(peer: Peer, topic: str, settings: Mapping[str, str]) -> list[str]:
    """The settings that are refused."""
    failed = []
    for name, value in settings.items():
        change = incremental_alter_configs.AlterableConfig(name=name, value=value)
        row = incremental_alter_configs.AlterConfigsResource(
            resource_type=ResourceType.TOPIC, resource_name=topic, configs=[change]
        )
        told = await peer.ask("IncrementalAlterConfigs", incremental_alter_configs.Request(resources=[row]))
        failed += [name] if told.responses[0].error_code == ErrorCode.INVALID_CONFIG else []
    return failed


def test_a_delivery_log_keeps_its_settings(with_broker: WithBroker) -> None:
    """Except those that its topic has, and those with which it can lose no records."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", configs=SCHEDULED)
        settings = {"cleanup.policy": "delete", "max.message.bytes": "10", "retention.ms": "1", "segment.ms": "1000"}
        failed = await _failures(peer, delivery_log_of("t"), settings)
        assert failed == ["cleanup.policy", "max.message.bytes", "retention.ms"]
        await _alter(peer, "t", {"min.insync.replicas": "2"})
        log = node.broker.replication.hosting.leads(delivery_log_of("t"), 0).log
        assert log.settings.min_insync_replicas == 2
        await _alter(peer, "t", {"min.insync.replicas": None})
        assert log.settings.min_insync_replicas == 1

    with_broker(scenario)


def test_pending_records_survive_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "data") as node, dialled(node) as peer:
            await make(peer, "t", configs=SCHEDULED)
            due_ms = node.broker.world.wall_ms() + 1500
            await _send(peer, "t", _batch((b"later", (("deliver-at", b"%d" % due_ms),)), (b"soon", SOON)))
            await _until(node, "t", 1)
        async with serving(tmp_path / "data") as node:
            assert [record.value for record in await _until(node, "t", 2)] == [b"soon", b"later"]
            assert node.broker.world.wall_ms() >= due_ms

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_what_was_delivered_leaves_the_delivery_log(with_broker: WithBroker) -> None:
    """The ends of entries are written, so that compaction removes them, and their records are no longer pending."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", configs=SCHEDULED)
        await _send(peer, "t", _batch((b"a", SOON), (b"b", SOON)))
        await _until(node, "t", 2)
        ((topic, index, leader),) = node.broker.coordinators.delivery_logs
        while leader.state.delivery is not None or leader.state.ended:
            await asyncio.sleep(0.01)
        assert (topic, index, len(leader.state)) == ("t", 0, 0)
        assert node.broker.coordinators.delivery_logs.delivered == 2
        records = _read(node, delivery_log_of("t"))
        newest = {record.key: record.value for record in records}
        assert [value is None for key, value in newest.items() if key and key[0] == 0] == [True]

    with_broker(scenario)


async def _partitions(peer: Peer) -> Mapping[str, tuple[int, bool]]:
    """The number of partitions of each topic, and whether it is internal."""
    told = await peer.ask("Metadata", metadata.Request(topics=None), version=12)
    return {topic.name or "": (len(topic.partitions), topic.is_internal) for topic in told.topics}


def test_a_delivery_log_is_made_grown_and_deleted_with_its_topic(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", partitions=2)
        assert await _partitions(peer) == {"t": (2, False)}
        for _ in range(2):
            await _alter(peer, "t", SCHEDULED)
        assert await _partitions(peer) == {"t": (2, False), "__scheduled.t": (2, True)}
        codes = []
        for name in ("t", "__scheduled.t"):
            more = create_partitions.CreatePartitionsTopic(name=name, count=3, assignments=None)
            told = await peer.ask("CreatePartitions", create_partitions.Request(topics=[more], timeout_ms=5000))
            codes.append(told.results[0].error_code)
        assert codes == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]
        assert await _partitions(peer) == {"t": (3, False), "__scheduled.t": (3, True)}
        codes = []
        for name in ("__scheduled.t", "t"):
            states = [delete_topics.DeleteTopicState(name=name)]
            told = await peer.ask("DeleteTopics", delete_topics.Request(topics=states, timeout_ms=5000))
            codes.append(told.responses[0].error_code)
        assert codes == [ErrorCode.INVALID_TOPIC_EXCEPTION, 0]
        assert await _partitions(peer) == {}

    with_broker(scenario)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("__scheduled.t", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 237, 0),
        ("x" * 238, ErrorCode.INVALID_CONFIG),
    ],
)
def test_names_that_cannot_be_scheduled(name: str, code: int, with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        config = create_topics.CreatableTopicConfig(name="kpybroker.delivery.scheduled", value="true")
        row = create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=[config])
        told = await peer.ask("CreateTopics", create_topics.Request(topics=[row], timeout_ms=5000))
        assert told.topics[0].error_code == code, told.topics[0].error_message

    with_broker(scenario)


def test_a_view_has_the_matching_records_once_they_are_delivered(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", configs=SCHEDULED)
        reader = Reader(peer, "v", await make_view(peer, "v", 'tag == "a"'), 12)
        for tag in (b"a", b"b"):
            await _send(peer, "t", _batch((tag + b" now", (("tag", tag),)), (tag + b" later", (("tag", tag), *SOON))))
        assert [record.value for record in await reader.read_to(4)] == [b"a now"]
        await _until(node, "t", 4)
        assert [record.value for record in await reader.read_to(6)] == [b"a now", b"a later"]

    with_broker(scenario)
