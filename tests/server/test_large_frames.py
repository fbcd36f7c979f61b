"""A large frame does not delay other requests: it is received and processed in pieces, or refused after its first
bytes."""

from __future__ import annotations

import asyncio
from struct import pack
from typing import Any

import pytest

from kpybroker.client.peer import Peer
from kpybroker.handlers.produce import AT_ONCE_BYTES
from kpybroker.server.connections.bad_frames import FRAME_BYTES_MAX, why_too_large
from kpybroker.server.connections.receive_memory import MAPPED_BYTES, receive_buffer
from kpybroker.server.node import Node
from kpybroker.storage.log.log import Log
from kpybroker.wire.api import API, Api, by_name
from kpybroker.wire.codec.codec import build, build_chunks_in_turns
from kpybroker.wire.records.batch import read_records, split
from kpybroker.wire.rpc import create_topics, metadata, produce
from tests.asking import batch_of, make, produced
from tests.conftest import WithBroker
from tests.handlers.strangers import live_stranger
from tests.server.raw import raw

VALUE_BYTES = 900_000
PARTITIONS = 3 * AT_ONCE_BYTES // VALUE_BYTES
COME_BYTES = 100_000


@pytest.mark.parametrize("api", API, ids=lambda api: api.name)
def test_only_apis_with_records_may_have_large_frames(api: Api) -> None:
    begin = memoryview(pack(">ihh", 0, api.key, api.max))
    assert why_too_large(4 + FRAME_BYTES_MAX, begin) is None
    assert (why_too_large(5 + FRAME_BYTES_MAX, begin) is None) is api.carries_bytes


def test_a_large_frame_without_records_is_refused_at_its_beginning(
    with_broker: WithBroker, caplog: pytest.LogCaptureFixture
) -> None:
    begin = pack(">ihhi", FRAME_BYTES_MAX + 1, by_name["Metadata"].key, 12, 1) + bytes(COME_BYTES)

    async def scenario(_: Any, node: Node) -> None:
        async with raw(node) as client:
            client.send(begin)
            assert await client.closed()
        assert node.server.memory.used_bytes == 0

    with_broker(scenario)
    assert f"Metadata of {FRAME_BYTES_MAX + 1} bytes" in caplog.text


def test_a_large_buffer_is_not_zeroed_before_bytes_arrive() -> None:
    assert type(receive_buffer(MAPPED_BYTES - 1)) is bytearray
    view = memoryview(receive_buffer(MAPPED_BYTES))
    assert type(view.obj) is not bytearray, "it would be filled with zeros at once"
    assert len(view) == MAPPED_BYTES
    view[-3:] = b"end"
    assert bytes(view[-4:]) == b"\0end"


def test_a_response_that_is_built_in_turns_is_joined_in_turns() -> None:
    """The response has millions of pieces. Each step joins the pieces that it has built."""
    topics = [metadata.MetadataResponseTopic(name=f"t{number}") for number in range(10_000)]
    response = metadata.Response(brokers=[], topics=topics)
    work, steps, chunks = build_chunks_in_turns(response, 12), 0, []
    try:
        while True:
            next(work)
            steps += 1
    except StopIteration as end:
        chunks = end.value
    whole = build(response, 12)
    assert b"".join(chunks) == whole
    assert len(chunks) >= steps == 20
    assert max(map(len, chunks)) <= len(whole) // 10


def test_a_produce_of_many_bytes_is_written_in_turns(with_broker: WithBroker) -> None:
    """The Produce has only a few partitions, and gets a single response."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", PARTITIONS)
        data = [
            produce.PartitionProduceData(index=index, records=batch_of(b"%09d" % index * (VALUE_BYTES // 9)))
            for index in range(PARTITIONS)
        ]
        topic = produce.TopicProduceData(name="t", partition_data=data)
        request = produce.Request(acks=1, timeout_ms=5000, topic_data=[topic])
        turns = node.broker.long_work.turns
        writing = asyncio.ensure_future(peer.ask("Produce", request, version=9))
        most = before = 0
        while not writing.done():
            await asyncio.sleep(0)
            now = sum(
                partition.log.written_end for partition in node.broker.replication.hosting if partition.topic == "t"
            )
            most, before = max(most, now - before), now
        rows = writing.result().responses[0].partition_responses
        assert [(row.index, row.error_code, row.base_offset) for row in rows] == [(n, 0, 0) for n in range(PARTITIONS)]
        assert most * VALUE_BYTES <= AT_ONCE_BYTES + VALUE_BYTES
        assert node.broker.long_work.turns - turns >= 3

    with_broker(scenario)


@pytest.mark.slow
def test_the_next_request_does_not_wait_for_the_acknowledgement_of_a_large_one(with_broker: WithBroker) -> None:
    """It waits only until the last slice is written. With acks=all, the acknowledgement takes longer."""
    count = AT_ONCE_BYTES // VALUE_BYTES + 2

    async def scenario(peer: Peer, node: Node) -> None:
        async with live_stranger(node):
            wanted = create_topics.CreatableTopic(name="t", num_partitions=-1, replication_factor=-1)
            wanted.assignments = [
                create_topics.CreatableReplicaAssignment(partition_index=index, broker_ids=[1, 2])
                for index in range(count)
            ]
            await peer.ask("CreateTopics", create_topics.Request(topics=[wanted]))
            data = [
                produce.PartitionProduceData(index=index, records=batch_of(b"%09d" % index * (VALUE_BYTES // 9)))
                for index in range(count)
            ]
            topic = produce.TopicProduceData(name="t", partition_data=data)
            large = produce.Request(acks=-1, timeout_ms=600_000, topic_data=[topic])
            asked = [
                asyncio.ensure_future(peer.ask("Produce", request, version=9))
                for request in (large, produced("t", b"next", acks=-1, index=count - 1), large)
            ]
            logs = [node.broker.replication.hosting.leads("t", index).log for index in range(count)]
            while [log.written_end for log in logs] != [*[2] * (count - 1), 3]:
                await asyncio.sleep(0)
            assert not any(each.done() for each in asked)
            assert {log.high_watermark for log in logs} == {0}
            values = [record.value for batch in split(read(logs[-1])) for record in read_records(batch)]
            assert [value[-9:] for value in values] == [b"%09d" % (count - 1), b"next", b"%09d" % (count - 1)]
            peer.close()
            await asyncio.gather(*asked, return_exceptions=True)

    with_broker(scenario, {"broker.session.timeout.ms": "60000"})  # so that the broker is not fenced on a busy machine


def read(log: Log) -> bytes:
    """All batches of a log."""
    return bytes(log.read(0, 4 * VALUE_BYTES, upper=log.end, min_one=True) or b"")
