"""Tests that batches with LogAppendTime are stamped when they are appended, even if their validation starts again."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kpybroker.call import Call
from kpybroker.client.peer import Peer
from kpybroker.config import LogSettings
from kpybroker.handlers.produce import handle
from kpybroker.server.node import Node
from kpybroker.serving.produce.append import Validated
from kpybroker.serving.produce.validation import validating_all, validating_one
from kpybroker.storage.log.admission import ALL, NOTHING
from kpybroker.storage.log.log import Log
from kpybroker.storage.log.slices import SHORT_AT_ONCE, SHORT_SLICES, Work, at_once
from kpybroker.transactions.records import tombstone
from kpybroker.wire.records.batch import Batch, Record, encode_batch, split
from kpybroker.wire.records.compression import Codec
from kpybroker.wire.records.record_scan import SLICE_RECORDS
from kpybroker.wire.rpc import produce
from kpybroker.world.real import RealWorld
from tests.asking import NOW_MS, make
from tests.conftest import WithBroker

CALL = Call(0, 9, "a", "127.0.0.1", 1)
COUNT = SHORT_SLICES + 16
"""Partitions whose batches take one slice each: more slices than the limit for short work (SHORT_SLICES)."""
LOG_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}


def to_all(topic: str, acks: int = 1) -> produce.Request:
    """A batch for each partition, in writable bytes like those that a connection receives."""
    records = [Record(0, NOW_MS, b"k", b"v")] * SLICE_RECORDS
    batch = encode_batch([record._replace(offset=at) for at, record in enumerate(records)])
    data = [produce.PartitionProduceData(index=index, records=memoryview(bytearray(batch))) for index in range(COUNT)]
    told = produce.TopicProduceData(name=topic, partition_data=data)
    return produce.Request(acks=acks, timeout_ms=30_000, topic_data=[told])


def stored(node: Node) -> list[Batch]:
    """The batches of all partitions."""
    logs = [node.broker.replication.hosting.leads("t", index).log for index in range(COUNT)]
    return [batch for log in logs for batch in split(bytes(log.read(0, 1 << 20, upper=log.end, min_one=True) or b""))]


def busy(told: list[None]) -> Work[None]:
    """A generator with more slices than short work may have."""
    for _ in range(SHORT_SLICES + 1):
        told.append(None)
        yield None


@pytest.mark.parametrize("compression", ["producer", "lz4"])
def test_a_produce_to_many_partitions_is_appended_completely(compression: str, with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", COUNT, {**LOG_APPEND_TIME, "compression.type": compression})
        answers = (await peer.ask("Produce", to_all("t"), version=9)).responses[0].partition_responses
        assert [each.error_code for each in answers] == [0] * COUNT
        times = {each.log_append_time_ms for each in answers}
        assert min(times) > 0
        assert [each.record_count for each in stored(node)] == [SLICE_RECORDS] * COUNT
        assert {each.max_timestamp for each in stored(node)} <= times
        assert all(each.crc_ok() for each in stored(node))

    with_broker(scenario)


def test_a_produce_that_has_begun_and_must_wait_is_appended_completely(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", COUNT, LOG_APPEND_TIME)
        told: list[None] = []
        run = node.broker.storage.log_dirs.sliced_work.run
        others = [asyncio.ensure_future(run(partial(busy, told))) for _ in range(SHORT_AT_ONCE)]
        await asyncio.sleep(0)  # this work occupies all places for short work
        later: Any = handle(node.broker, CALL, to_all("t"))
        waiting = asyncio.ensure_future(later)
        await asyncio.sleep(0)
        assert len(told) < SHORT_SLICES, "no place is free yet"
        await waiting
        await asyncio.gather(*others)
        assert [each.record_count for each in stored(node)] == [SLICE_RECORDS] * COUNT
        assert all(each.crc_ok() for each in stored(node))

    with_broker(scenario)


@pytest.mark.parametrize("configs", [{}, LOG_APPEND_TIME], ids=["CreateTime", "LogAppendTime"])
def test_a_validated_batch_is_not_validated_again(configs: dict[str, str], with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", COUNT, configs)
        request = to_all("t")
        found: Validated = {}
        slices = sum(1 for _ in validating_all(node.broker, CALL, to_all("t"), {}))
        assert slices >= COUNT - 1, "one ends before each batch but the first"
        begun = validating_all(node.broker, CALL, request, found)
        for _ in range(slices - 3):
            next(begun)
        begun.close()
        assert sum(1 for _ in validating_all(node.broker, CALL, request, found)) <= 4
        assert len(found) == COUNT
        assert all(isinstance(each, Batch) for each in found.values())

    with_broker(scenario)


def test_times_of_append_do_not_go_backwards(tmp_path: Path) -> None:
    """A batch that waited for its validation is stamped when it is appended, after batches that were appended in the
    meantime."""
    settings = LogSettings(message_timestamp_type="LogAppendTime")
    log = Log.open(RealWorld(1), str(tmp_path / "t-0"), "t", 0, settings, clean=False)
    waited, quick = (split(memoryview(bytearray(encode_batch([Record(0, 5, b"k", b"v")])))) for _ in range(2))
    data = produce.PartitionProduceData()
    found = at_once(validating_one(data, waited[0], "t", settings, NOW_MS))[id(data)]
    assert isinstance(found, Batch)
    for batches, now_ms, known in ((quick, NOW_MS + 1000, NOTHING), ([found], NOW_MS + 2000, ALL)):
        assert log.append(batches, 0, now_ms, known=known).log_append_time_ms == now_ms
    log.flush()
    content = log.read(0, 1 << 20, upper=log.end, min_one=True)
    assert content is not None
    stored = split(bytes(content))
    assert [each.max_timestamp for each in stored] == [NOW_MS + 1000, NOW_MS + 2000]
    assert all(each.crc_ok() for each in stored)


def test_a_coordinators_batch_may_be_validated_again() -> None:
    """The bytes of the batch stay unchanged, because a thread reads its records, and validation may start again before
    that."""
    record = tombstone("a", NOW_MS)
    content = encode_batch([Record(0, NOW_MS, record.key, record.value)], codec=Codec.LZ4)
    batch, data = Batch(memoryview(bytearray(content))), produce.PartitionProduceData()
    settings = LogSettings(message_timestamp_type="LogAppendTime")
    begin = partial(validating_one, data, batch, "__transaction_state", settings, NOW_MS + 1)
    begun = begin()
    while next(begun) is None:
        pass
    begun.close()
    found = at_once(begin())[id(data)]
    assert isinstance(found, Batch)
    assert found.crc_ok()
    assert bytes(found.view) == content
