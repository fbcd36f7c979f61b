"""Tests the acknowledgements and error codes of Produce."""

from __future__ import annotations

import asyncio

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import init_producer_id, produce
from tests.asking import NOW_MS, batch_of, get, make, produced, put
from tests.conftest import WithBroker

ROW = api_table.by_name["Produce"]


@pytest.mark.parametrize("version", range(ROW.min, ROW.max + 1))
def test_every_version_appends_and_returns_the_offset(version: int, with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t")
        for base_offset in (0, 3):
            request = produced("t", b"a", b"b", b"c", acks=-1)
            request.topic_data[0].topic_id = topic_id
            told = (await peer.ask("Produce", request, version=version)).responses[0]
            answer = told.partition_responses[0]
            assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, base_offset, -1)
            assert told.topic_id == topic_id if version >= 13 else told.name == "t"
        assert bytes((await get(peer, "t", 0)).records).count(b"a") >= 2

    with_broker(scenario)


def test_produces_above_the_waiting_limit_get_an_error(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests are sent in one turn of the event loop, arrive in one event, and wait for the disk."""
    monkeypatch.setattr("kpybroker.replication.partition.partition.WAITERS_LIMIT", 2)

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await make(peer, "u")
        requests = [produced(topic, b"x", acks=-1) for topic in ("t",) * 5 + ("u",)]
        for request in requests:
            request.timeout_ms = 600_000
        asked = [peer.ask("Produce", request, version=12) for request in requests]
        codes = [each.responses[0].partition_responses[0].error_code for each in await asyncio.gather(*asked)]
        assert codes == [0, 0, *[ErrorCode.REQUEST_TIMED_OUT] * 3, 0]
        assert (await put(peer, "t", b"y", acks=-1)).error_code == 0
        assert node.broker.replication.hosting.leads("t", 0).log.high_watermark == 6, "they are appended nevertheless"

    with_broker(scenario, {"kpybroker.fsync": "always"})


def with_flag(records: bytes, attributes: int) -> bytes:
    """The same batch with other attributes and the right CRC."""
    from kpybroker.wire.records.checksum import crc32c

    changed = bytearray(records)
    changed[21:23] = attributes.to_bytes(2, "big")
    changed[17:21] = crc32c(memoryview(changed)[21:]).to_bytes(4, "big")
    return bytes(changed)


def with_count(records: bytes, count: int) -> bytes:
    """The same batch with this number of records in its header."""
    changed = bytearray(records)
    changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
    changed[23:27] = (count - 1).to_bytes(4, "big")
    changed[57:61] = count.to_bytes(4, "big")
    return with_flag(bytes(changed), 0)


GOOD = batch_of(b"x")
REFUSED = {
    "CRC": (GOOD[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
    "cut short": (GOOD[:-3], ErrorCode.CORRUPT_MESSAGE),
    "less than a header": (GOOD[:30], ErrorCode.CORRUPT_MESSAGE),
    "two batches": (GOOD + GOOD, ErrorCode.INVALID_RECORD),
    "none": (b"", ErrorCode.INVALID_RECORD),
    "control batch": (batch_of(b"x", control=True), ErrorCode.INVALID_RECORD),
    "magic 1": (GOOD[:16] + b"\1" + GOOD[17:], ErrorCode.INVALID_RECORD),
    "magic 9": (GOOD[:16] + b"\x09" + GOOD[17:], ErrorCode.CORRUPT_MESSAGE),
    "unknown codec": (with_flag(GOOD, 7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "transactional": (
        batch_of(b"x", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "more records than bytes": (with_count(GOOD, 1000), ErrorCode.INVALID_RECORD),
    "two billion records in no bytes": (with_count(GOOD[:61], 2**31 - 1), ErrorCode.INVALID_RECORD),
    "from tomorrow": (batch_of(b"x", first_ms=NOW_MS * 10), ErrorCode.INVALID_TIMESTAMP),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_bad_batch_is_refused_and_nothing_is_appended(kind: str, with_broker: WithBroker) -> None:
    records, code = REFUSED[kind]

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await put(peer, "t", b"before")
        answer = await put(peer, "t", records=records)
        assert answer.base_offset == -1
        assert answer.error_code == code
        assert (await put(peer, "t", b"after")).base_offset == 1

    with_broker(scenario)


def test_refusals_are_per_partition(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", partitions=2)
        data = [produce.PartitionProduceData(index=i, records=batch_of(b"x")) for i in (0, 7, 1)]
        request = produce.Request(
            acks=1, timeout_ms=1000, topic_data=[produce.TopicProduceData(name="t", partition_data=data)]
        )
        answers = (await peer.ask("Produce", request, version=9)).responses[0].partition_responses
        assert [a.error_code for a in answers] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]

    with_broker(scenario)


def test_limits_and_odd_requests(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "small", configs={"max.message.bytes": str(len(GOOD))})
        assert (await put(peer, "small", records=GOOD)).error_code == 0
        assert (await put(peer, "small", b"xx")).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await put(peer, "small", b"", acks=2)).error_code == ErrorCode.INVALID_REQUIRED_ACKS
        assert (await put(peer, "absent", b"x")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await make(peer, "two", configs={"min.insync.replicas": "2"})
        assert (await put(peer, "two", b"x", acks=-1)).error_code == 0, (
            "min.insync.replicas is capped at the number of replicas"
        )
        assert (await put(peer, "two", b"x", acks=1)).error_code == 0
        request = produced("small", b"")
        request.topic_data[0].topic_id = bytes(range(16))
        told = await peer.ask("Produce", request, version=13)
        assert told.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    with_broker(scenario)


def test_a_compacted_topic_names_the_record_without_a_key(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "c", configs={"cleanup.policy": "compact"})
        answer = await put(peer, "c", b"x")
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert [e.batch_index for e in answer.record_errors] == [0]

    with_broker(scenario)


def test_log_append_time_is_returned_and_stored(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", configs={"message.timestamp.type": "LogAppendTime"})
        answer = await put(peer, "t", b"x")
        assert answer.log_append_time_ms > NOW_MS

    with_broker(scenario)


def test_an_idempotent_producer_is_answered_twice_and_stored_once(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        told = await peer.ask("InitProducerId", init_producer_id.Request(transactional_id=None), version=4)
        assert told.error_code == 0
        mine = {"producer_id": told.producer_id, "producer_epoch": told.producer_epoch}
        offsets = []
        for sequence in (0, 2, 0, 2):
            answer = await put(peer, "t", records=batch_of(b"a", b"b", base_sequence=sequence, **mine), acks=-1)
            assert answer.error_code == 0
            offsets.append(answer.base_offset)
        assert offsets == [0, 2, 0, 2]
        answer = await put(peer, "t", records=batch_of(b"c", base_sequence=9, **mine))
        assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    with_broker(scenario)


def test_with_fsync_always_an_acknowledgement_means_on_disk(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        for number in range(5):
            assert (await put(peer, "t", b"x", acks=1)).base_offset == number
            partition = node.broker.replication.hosting.find("t", 0)
            assert partition is not None
            assert partition.log.synced_end >= number + 1

    with_broker(scenario, {"kpybroker.fsync": "always"})
