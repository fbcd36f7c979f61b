"""Tests batches whose validation takes a long time: other connections are served, and nothing is reordered on the same
connection."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kpybroker.call import Call
from kpybroker.client.peer import Peer
from kpybroker.config import LogSettings
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.serving.fair_loop import SLICE
from kpybroker.serving.produce.reply import ProduceReply
from kpybroker.serving.produce.validation import first_slices, validating_all
from kpybroker.storage.log.slices import AT_ONCE, Work
from kpybroker.wire.codec.parsing import ELEMENTS_AT_ONCE
from kpybroker.wire.records.batch import HEADER_BYTES, Batch, Record, encode_batch, read_records, split, with_body
from kpybroker.wire.records.compression import Codec, compress
from kpybroker.wire.rpc import create_topics, list_offsets, produce
from tests.asking import NOW_MS, batch_of, get, make, produced, put, turns_while
from tests.conftest import WithBroker
from tests.handlers.strangers import live_stranger
from tests.serving import dialled

pytestmark = pytest.mark.slow

CALL = Call(0, 9, "a", "127.0.0.1", 1)
MANY = 8000
"""Records of a batch that is validated in several slices."""


def large(codec: int = Codec.ZSTD, count: int = MANY, **facts: Any) -> bytes:
    records = [Record(0, NOW_MS + number, b"k%d" % number, b"v" * 10) for number in range(count)]
    return bytes(encode_batch(records, codec=codec, **facts))


@pytest.mark.parametrize("codec", Codec)
def test_other_connections_are_served_while_a_batch_is_validated(codec: Codec, with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        async with dialled(node) as other:
            first = asyncio.ensure_future(put(peer, "t", records=large(codec, 2 * MANY)))
            await asyncio.sleep(0)
            answer = await put(other, "t", b"x")
            assert (answer.error_code, answer.base_offset) == (0, 0), "it was appended before the large one"
            answer = await first
        assert (answer.error_code, answer.base_offset) == (0, 1)
        assert node.broker.replication.hosting.leads("t", 0).log.end == 2 * MANY + 1

    with_broker(scenario)


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_of_the_default_size_is_validated_without_a_turn(codec: Codec, with_broker: WithBroker) -> None:
    """message.max.bytes of records that are not tiny, as clients send them under load."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", 1)
        limit_bytes = LogSettings().max_message_bytes
        of = [Record(at, NOW_MS, None, bytes(limit_bytes // 600 - 30)) for at in range(600)]
        assert limit_bytes - 20_000 < len(encode_batch(of)) <= limit_bytes
        data = produce.PartitionProduceData(index=0, records=memoryview(encode_batch(of, codec=codec)))
        request = produce.Request(topic_data=[produce.TopicProduceData(name="t", partition_data=[data])])
        validated, step = first_slices(validating_all(node.broker, CALL, request, {}))
        assert step is None
        assert validated is not None
        assert validated.keys() == {id(data)}

    with_broker(scenario)


def test_later_requests_of_a_connection_wait_for_its_batch(with_broker: WithBroker) -> None:
    """The sequences of an idempotent producer stay in order, and the batch's bytes stay unchanged."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        facts = {"producer_id": 5, "producer_epoch": 0}
        batches = [large(base_sequence=0, **facts)]
        batches += [large(Codec.NONE, 1, base_sequence=MANY + number, **facts) for number in range(40)]
        batches.append(large(Codec.LZ4, base_sequence=MANY + 40, **facts))
        asked = [put(peer, "t", records=records, acks=-1) for records in batches]
        answers = await asyncio.gather(*asked)
        assert [answer.error_code for answer in answers] == [0] * len(batches)
        assert [answer.base_offset for answer in answers] == [0, *range(MANY, MANY + 41)]
        log = node.broker.replication.hosting.leads("t", 0).log
        stored = split(bytes(log.read(0, 1 << 20, upper=log.end, min_one=True) or b""))
        assert all(batch.crc_ok() for batch in stored)
        assert [batch.record_count for batch in stored] == [MANY, *[1] * 40, MANY]
        again = await put(peer, "t", records=batches[-1])
        assert (again.error_code, again.base_offset) == (0, MANY + 40), "the same as before"

    with_broker(scenario)


def test_later_requests_wait_for_a_batch_that_is_recompressed(with_broker: WithBroker) -> None:
    """Batches of other connections may be appended in the meantime; each producer's batches keep their order."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", configs={"compression.type": "zstd", "compression.zstd.level": "19"})

        def batches(producer: int) -> list[bytes]:
            counts = (MANY, 1, MANY, 1, 1)
            first = [sum(counts[:at]) for at in range(len(counts))]
            facts = {"producer_id": producer, "producer_epoch": 0}
            return [large(Codec.LZ4, n, base_sequence=at, **facts) for n, at in zip(counts, first, strict=True)]

        async with dialled(node) as other:
            asked = [put(which, "t", records=one) for which, id_ in ((peer, 5), (other, 6)) for one in batches(id_)]
            answers = await asyncio.gather(*asked)
        assert [answer.error_code for answer in answers] == [0] * 10
        for mine in (answers[:5], answers[5:]):
            offsets = [answer.base_offset for answer in mine]
            assert offsets == sorted(offsets)
        log = node.broker.replication.hosting.leads("t", 0).log
        stored = split(bytes(log.read(0, 1 << 22, upper=log.end, min_one=True) or b""))
        assert [batch.codec for batch in stored] == [Codec.ZSTD] * 10
        assert all(batch.crc_ok() for batch in stored)

    with_broker(scenario)


def test_the_next_request_does_not_wait_for_the_acknowledgement(with_broker: WithBroker) -> None:
    """It waits only for the append. With acks=all, the acknowledgement takes longer because of the followers."""

    async def scenario(peer: Peer, node: Node) -> None:
        async with live_stranger(node):
            assigned = create_topics.CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])
            wanted = create_topics.CreatableTopic(name="t", num_partitions=-1, replication_factor=-1)
            wanted.assignments = [assigned]
            await peer.ask("CreateTopics", create_topics.Request(topics=[wanted]))
            asked = [
                asyncio.ensure_future(peer.ask("Produce", produced("t", acks=-1, records=records), version=9))
                for records in (large(), large(Codec.NONE, 1), large())
            ]
            log = node.broker.replication.hosting.leads("t", 0).log
            while log.end < 2 * MANY + 1:
                await asyncio.sleep(0)
            assert not any(each.done() for each in asked)
            assert log.high_watermark == 0
            peer.close()
            await asyncio.gather(*asked, return_exceptions=True)

    with_broker(scenario)


@asynccontextmanager
async def without_places(node: Node) -> AsyncIterator[None]:
    """A context in which other batches occupy all places for validation."""
    over = threading.Event()

    def waits() -> Work[None]:
        yield over.wait

    works = [asyncio.ensure_future(node.broker.storage.log_dirs.sliced_work.run(waits)) for _ in range(AT_ONCE)]
    await asyncio.sleep(0)
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*works)


async def codes_without_places(node: Node, request: produce.Request, peer: Peer) -> list[int]:
    """The error codes of a Produce while there are no places."""
    async with without_places(node):
        told = await asyncio.wait_for(peer.ask("Produce", request, version=9), 20)
    return [each.error_code for each in told.responses[0].partition_responses]


def waiting_replies() -> list[ProduceReply]:
    """All replies to a Produce in this process that are not complete."""
    return [each for each in gc.get_objects() if isinstance(each, ProduceReply) and not each.done]


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_that_is_not_validated_in_time_is_refused(with_broker: WithBroker, count: int) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", partitions=count)
        data = [produce.PartitionProduceData(index=index, records=large()) for index in range(count)]
        told = produce.TopicProduceData(name="t", partition_data=data)
        request = produce.Request(acks=-1, timeout_ms=20, topic_data=[told])
        assert await codes_without_places(node, request, peer) == [ErrorCode.REQUEST_TIMED_OUT] * count
        assert [node.broker.replication.hosting.leads("t", index).log.end for index in range(count)] == [0] * count

    with_broker(scenario)


def test_a_slice_that_is_not_validated_in_time_affects_no_other(with_broker: WithBroker) -> None:
    count = ELEMENTS_AT_ONCE + 100

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", partitions=count)
        small = batch_of(b"v")
        data = [produce.PartitionProduceData(index=index, records=small) for index in range(count)]
        data[SLICE] = produce.PartitionProduceData(index=SLICE, records=large())
        request = produce.Request(
            acks=1, timeout_ms=500, topic_data=[produce.TopicProduceData(name="t", partition_data=data)]
        )
        codes = await codes_without_places(node, request, peer)
        late = [index for index, code in enumerate(codes) if code]
        assert late == list(range(SLICE, 2 * SLICE))
        assert [node.broker.replication.hosting.leads("t", index).log.end for index in range(count)] == [
            not code for code in codes
        ]

    with_broker(scenario)


def test_slices_of_a_lost_connection_are_not_waited_for(with_broker: WithBroker) -> None:
    count = ELEMENTS_AT_ONCE + 100

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", partitions=count)
        partition = node.broker.replication.hosting.find("t", 0)
        image = node.broker.metadata.image.topics["t"].partitions[0]
        both = (node.broker.node_id, 99)
        partition.become(image._replace(replicas=both, isr=both, partition_epoch=99, leader_epoch=99))
        data = [produce.PartitionProduceData(index=index, records=batch_of(b"v")) for index in range(count)]
        data[-1] = produce.PartitionProduceData(index=count - 1, records=large())
        request = produce.Request(
            acks=-1, timeout_ms=2**31 - 1, topic_data=[produce.TopicProduceData(name="t", partition_data=data)]
        )
        async with without_places(node):
            asked = asyncio.ensure_future(peer.ask("Produce", request, version=9))
            while node.broker.replication.hosting.find("t", 4 * SLICE - 1).log.end < 1:
                await asyncio.sleep(0)
            assert len(waiting_replies()) == 1, "the first slice waits for a replica that does not exist"
            (reply,) = [each.last_reply for each in node.server.connections() if each.last_reply is not None]
            reply.abandon()
            for _ in range(5):
                await asyncio.sleep(0)
            assert waiting_replies() == []
            peer.close()
            await asyncio.gather(asked, return_exceptions=True)

    with_broker(scenario)


def test_large_and_small_and_broken_ones_in_one_request(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", partitions=5)
        good = Batch(memoryview(bytearray(large())))
        broken = bytes(with_body(good, Codec.GZIP, compress(Codec.GZIP, bytes(200_000)), NOW_MS).view)
        records = [large(), large(Codec.NONE, 1), broken, large(Codec.NONE, 2), large(Codec.SNAPPY)]
        data = [produce.PartitionProduceData(index=index, records=each) for index, each in enumerate(records)]
        data.append(produce.PartitionProduceData(index=9, records=records[0]))
        told = produce.TopicProduceData(name="t", partition_data=data)
        request = produce.Request(acks=-1, timeout_ms=5000, topic_data=[told])
        answers = (await peer.ask("Produce", request, version=9)).responses[0].partition_responses
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [each.error_code for each in answers] == [0, 0, ErrorCode.INVALID_RECORD, 0, 0, unknown]
        ends = [node.broker.replication.hosting.leads("t", index).log.end for index in range(5)]
        assert ends == [MANY, 1, 0, 2, MANY]

    with_broker(scenario)


def test_surplus_batches_are_not_parsed(with_broker: WithBroker) -> None:
    """One batch per partition is allowed, so the bytes after the second batch are not parsed."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        one = large(Codec.NONE, 1)
        for records in (one * 2, one * 3, one * 2 + b"x" * 100):
            assert (await put(peer, "t", records=records)).error_code == ErrorCode.INVALID_RECORD
        assert (await put(peer, "t", records=one + b"x" * 100)).error_code == ErrorCode.CORRUPT_MESSAGE

    with_broker(scenario)


def test_a_broken_batch_alone_is_refused_however_large(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        good = Batch(memoryview(bytearray(large(Codec.NONE))))
        body = bytes(good.view[HEADER_BYTES:-1]) + b"\2"
        for codec in Codec:
            answer = await put(peer, "t", records=bytes(with_body(good, codec, compress(codec, body), NOW_MS).view))
            assert answer.error_code == ErrorCode.INVALID_RECORD
        assert (await put(peer, "t", b"x")).base_offset == 0

    with_broker(scenario)


def test_a_closed_connection_affects_no_other(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        async with dialled(node) as other:
            asked = [asyncio.ensure_future(other.ask("Produce", produced("t", records=large()), version=9))]
            asked.append(asyncio.ensure_future(other.ask("Produce", produced("t", b"x"), version=9)))
            await asyncio.sleep(0)
        await asyncio.gather(*asked, return_exceptions=True)
        assert (await put(peer, "t", records=large(Codec.GZIP))).error_code == 0
        records = split((await get(peer, "t", 0)).records)
        assert sum(1 for batch in records for _ in read_records(batch)) % MANY in (0, 1)

    with_broker(scenario)


@pytest.mark.parametrize(("timestamp", "found"), [(NOW_MS + MANY - 1, MANY - 1), (-3, MANY - 1), (NOW_MS + MANY, -1)])
def test_a_look_up_by_time_runs_over_several_turns(timestamp: int, found: int, with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await put(peer, "t", records=large(Codec.GZIP))
        wanted = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
        topic = list_offsets.ListOffsetsTopic(name="t", partitions=[wanted])
        request = list_offsets.Request(replica_id=-1, topics=[topic])
        work = node.broker.replication.hosting.leads("t", 0).log.looking_up(None if timestamp == -3 else timestamp)
        slices = sum(1 for _ in work)
        told: list[Any] = []

        async def ask() -> None:
            told.append((await peer.ask("ListOffsets", request, version=8)).topics[0].partitions[0])

        turns = await turns_while(ask())
        assert told[0].offset == found
        if found >= 0:
            assert slices >= MANY // 1000 - 1
            assert turns >= slices, "other requests have as many turns"

    with_broker(scenario)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
def test_others_are_served_between_refused_batches(codec: Codec, with_broker: WithBroker) -> None:
    """Each batch has a body without the records that its header declares."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", partitions=60)
        good = Batch(memoryview(bytearray(large(Codec.NONE, 1))))
        broken = bytes(with_body(good, codec, bytes(range(50)) * 20, NOW_MS).view)
        data = [produce.PartitionProduceData(index=index, records=broken) for index in range(60)]
        told = produce.TopicProduceData(name="t", partition_data=data)
        request = produce.Request(acks=1, timeout_ms=5000, topic_data=[told])
        assert sum(1 for _ in validating_all(node.broker, CALL, request, {})) >= 59
        answers = (await peer.ask("Produce", request, version=9)).responses[0].partition_responses
        assert {each.error_code for each in answers} <= {ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_SERVER_ERROR}

    with_broker(scenario)


def test_others_are_served_between_large_batches_of_one_record(with_broker: WithBroker) -> None:
    """The checksum of a megabyte takes as long as a thousand records."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", partitions=20)
        one = bytes(encode_batch([Record(0, NOW_MS, b"k", bytes(1_000_000))]))
        data = [produce.PartitionProduceData(index=index, records=one) for index in range(20)]
        told = produce.TopicProduceData(name="t", partition_data=data)
        request = produce.Request(acks=1, timeout_ms=5000, topic_data=[told])
        assert sum(1 for _ in validating_all(node.broker, CALL, request, {})) >= 19

    with_broker(scenario)


@pytest.mark.parametrize(("acks", "end"), [(1, 0), (0, 4 * MANY)])
def test_validation_ends_with_its_connection(acks: int, end: int, with_broker: WithBroker) -> None:
    """Reading is paused during the validation, so only the sweep notices that the connection is closed. With acks=0, a
    producer may close its connection once it has sent its records."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", partitions=10)
        data = [produce.PartitionProduceData(index=index, records=large(Codec.GZIP, 4 * MANY)) for index in range(10)]
        told = produce.TopicProduceData(name="t", partition_data=data)
        request = produce.Request(acks=acks, timeout_ms=60_000, topic_data=[told])
        server = node.server
        async with dialled(node) as other:
            asked = asyncio.ensure_future(
                other.ask("Produce", request, version=9) if acks else other.send("Produce", request, version=9)
            )
            while not (held := [each for each in server.connections() if is_opening(each)]):
                await asyncio.sleep(0)
            task = held[0].last_reply.task
        while is_opening(held[0]):
            server.look_at(held[0], server.now)
            await asyncio.sleep(0)
        await asyncio.gather(asked, return_exceptions=True)
        if acks:
            assert held[0] not in server.connections()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
        assert node.broker.replication.hosting.leads("t", 9).log.end == end
        assert (await put(peer, "t", records=large())).error_code == 0, "the place is free again"

    with_broker(scenario)


def is_opening(connection: Any) -> bool:
    return connection.last_reply is not None and getattr(connection.last_reply, "holds_frame", False)
