"""Long requests occupy places while they are processed, but not while they wait. Their elements and bytes are
limited."""

from __future__ import annotations

import asyncio

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import MalformedFrame
from kpybroker.long_work import ELEMENTS_MAX, PARKED_MAX, QUEUE_MAX, REQUESTS_MAX, LongWork
from kpybroker.server.node import Node
from kpybroker.wire.api import by_name
from kpybroker.wire.codec.parsing import ELEMENTS_AT_ONCE
from kpybroker.wire.frame import encode_request
from kpybroker.wire.rpc import alter_client_quotas, fetch, metadata, produce
from tests.asking import batch_of, make
from tests.conftest import WithBroker
from tests.server.raw import raw


async def in_line(work: LongWork, *asked: tuple[int, int]) -> tuple[list[int], list[asyncio.Task[None]]]:
    """Request places for these numbers of elements and frame bytes. Return the numbers of the requests that have a
    place, and the tasks, which keep the places until they are cancelled."""
    having: list[int] = []

    async def ask(number: int, elements: int, frame_bytes: int) -> None:
        async with work.place(elements, frame_bytes):
            having.append(number)
            await asyncio.get_running_loop().create_future()

    tasks = [asyncio.create_task(ask(number, *each)) for number, each in enumerate(asked)]
    await turns(3)
    return having, tasks


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_long_requests_together_have_no_more_elements_than_the_limit() -> None:
    async def scenario() -> None:
        work = LongWork()
        having, tasks = await in_line(work, (ELEMENTS_MAX - 10, 0), (10, 0), (1, 0), (ELEMENTS_MAX * 2, 0), (1, 0))
        assert having == [0, 1]
        tasks[1].cancel()
        await turns(3)
        assert having == [0, 1, 2]
        tasks[0].cancel()
        tasks[2].cancel()
        await turns(3)
        assert having == [0, 1, 2, 3], "one with more than the limit runs alone"
        tasks[3].cancel()
        await turns(3)
        assert having == [0, 1, 2, 3, 4]
        await end(tasks)

    asyncio.run(scenario())


def test_a_request_that_leaves_the_queue_lets_those_behind_it_continue() -> None:
    async def scenario() -> None:
        work = LongWork()
        having, tasks = await in_line(work, (10, 0), (ELEMENTS_MAX, 7), (1, 0))
        assert having == [0]
        tasks[1].cancel()
        await turns(3)
        assert having == [0, 2]
        assert work.queued_bytes == 0
        await end(tasks)

    asyncio.run(scenario())


def test_frames_that_wait_for_a_place_have_no_more_bytes_than_the_limit() -> None:
    async def scenario() -> None:
        work = LongWork()
        work.limit_queue(100)
        _, tasks = await in_line(work, (ELEMENTS_MAX, 900), (1, 20), (1, 60), (1, 20))
        assert work.queued_bytes == 100
        _, more = await in_line(work, (1, 1))
        assert work.queued_bytes == 41
        with pytest.raises(MalformedFrame, match="too many requests of many elements"):
            await tasks[2]  # the largest
        _, beyond = await in_line(work, (1, 500))
        with pytest.raises(MalformedFrame):
            await beyond[0]
        await end([*tasks, *more])
        _, alone = await in_line(work, (ELEMENTS_MAX, 0), (1, 500))
        assert work.queued_bytes == 500, "if nothing else waits, it may have more"
        await end(alone)
        assert work.queued_bytes == 0

    asyncio.run(scenario())


def test_no_more_requests_wait_for_a_place_than_the_limit() -> None:
    async def scenario() -> None:
        work = LongWork()
        _, tasks = await in_line(work, (ELEMENTS_MAX, 0), *[(1, 0)] * (QUEUE_MAX + 2))
        assert [number for number, task in enumerate(tasks) if task.done()] == [QUEUE_MAX + 1, QUEUE_MAX + 2]
        await end(tasks)

    asyncio.run(scenario())


def test_it_reports_when_long_requests_are_in_progress() -> None:
    async def scenario() -> None:
        work, told = LongWork(), []
        work.on_busy(told.append)
        _, tasks = await in_line(work, (ELEMENTS_MAX, 0), (1, 0), (1, 0))
        assert told == [True]
        tasks[0].cancel()
        await turns(3)
        assert told[-1] is True
        await end(tasks)
        assert told[-1] is False

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("has_quota", [False, True])
def test_a_produce_that_waits_for_replicas_holds_no_place_and_no_frame(
    with_broker: WithBroker, has_quota: bool
) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", 1100)
        if has_quota:
            await limit_requests(peer)
        for index in range(1100):
            lacks_a_replica(node, "t", index)
        clients = [await asyncio.open_connection(*node.bootstrap.split(":")) for _ in range(REQUESTS_MAX)]
        data = [produce.PartitionProduceData(index=index, records=batch_of(b"v")) for index in range(1100)]
        long = produce.Request(
            acks=-1, timeout_ms=30_000, topic_data=[produce.TopicProduceData(name="t", partition_data=data)]
        )
        for _, writer in clients:
            writer.write(b"".join(encode_request(1, by_name["Produce"], 9, long, "many")))
        answers = [asyncio.create_task(reader.readexactly(4)) for reader, _ in clients]
        last = node.broker.replication.hosting.find("t", 1099).log
        while last.end < REQUESTS_MAX:
            await asyncio.sleep(0)
        async with raw(node) as client:
            topics = [metadata.MetadataRequestTopic(name=f"no{n}") for n in range(ELEMENTS_AT_ONCE + 100)]
            client.ask(1, "Metadata", metadata.Request(topics=topics, allow_auto_topic_creation=False), 12)
            assert await client.frame()
        assert not any(each.done() for each in answers)
        held = [each for each in node.server.connections() if each.blocker is not None and each.blocker.holds_frame]
        assert held == []
        for _, writer in clients:
            writer.transport.abort()
        await asyncio.gather(*answers, return_exceptions=True)

    with_broker(scenario)


async def limit_requests(peer: Peer) -> None:
    """Set a quota for clients that none of them exceeds."""
    entity = alter_client_quotas.EntityData(entity_type="client-id", entity_name=None)
    op = alter_client_quotas.OpData(key="producer_byte_rate", value=1e12, remove=False)
    entry = alter_client_quotas.EntryData(entity=[entity], ops=[op])
    told = await peer.ask("AlterClientQuotas", alter_client_quotas.Request(entries=[entry], validate_only=False))
    assert told.entries[0].error_code == 0


def lacks_a_replica(node: Node, topic: str, index: int) -> None:
    """Make an in-sync follower fail, so that no more records are committed."""
    partition = node.broker.replication.hosting.find(topic, index)
    image = node.broker.metadata.image.topics[topic].partitions[index]
    both = (node.broker.node_id, 99)
    partition.become(image._replace(replicas=both, isr=both, partition_epoch=99, leader_epoch=99))


def test_a_long_fetch_keeps_its_place_until_it_is_answered(with_broker: WithBroker) -> None:
    """The limit on elements also limits the memory of its objects and of its response."""

    async def scenario(_: Peer, node: Node) -> None:
        work, told = node.broker.long_work, []
        work.on_busy(told.append)
        partitions = [fetch.FetchPartition(partition=index) for index in range(ELEMENTS_AT_ONCE + 1000)]
        request = fetch.Request(topics=[fetch.FetchTopic(topic="none", partitions=partitions)], max_wait_ms=0)
        async with raw(node) as client:
            client.ask(1, "Fetch", request, 12)
            while not told:
                await asyncio.sleep(0)
            (reply,) = [each.last_reply for each in node.server.connections() if each.last_reply is not None]
            while told[-1]:
                await asyncio.sleep(0)
            assert reply.waits_for is not None
            assert reply.waits_for.done
            assert await client.frame()

    with_broker(scenario)


def test_fetches_that_wait_have_no_more_rows_than_the_limit(with_broker: WithBroker) -> None:
    """Fetches above the limit have a response at once, with the available records."""
    rows = ELEMENTS_AT_ONCE + 200

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", rows)
        work = node.broker.long_work
        partitions = [fetch.FetchPartition(partition=index, partition_max_bytes=100) for index in range(rows)]
        request = fetch.Request(
            topics=[fetch.FetchTopic(topic="t", partitions=partitions)],
            max_wait_ms=600_000,
            min_bytes=1,
            max_bytes=1000,
        )
        assert work.park(PARKED_MAX - rows)
        async with raw(node) as waiting, raw(node) as beyond:
            waiting.ask(1, "Fetch", request, 12)
            while work.parked < PARKED_MAX:
                await asyncio.sleep(0)
            beyond.ask(1, "Fetch", request, 12)
            assert await beyond.frame()
            assert work.parked == PARKED_MAX
        while work.parked > PARKED_MAX - rows:
            await asyncio.sleep(0)

    with_broker(scenario)


def test_a_request_that_waits_for_another_node_gives_up_its_place_and_returns() -> None:
    async def scenario() -> None:
        work, answer = LongWork(), asyncio.Event()
        told: list[str] = []

        async def forwarded() -> None:
            async with work.place(10):
                async with work.outside():
                    await answer.wait()
                told.append("answered")

        async def other() -> None:
            async with work.place(ELEMENTS_MAX):
                told.append("other")

        tasks = [asyncio.create_task(forwarded()) for _ in range(2 * REQUESTS_MAX)]
        await turns(5)
        assert work.parked == 2 * REQUESTS_MAX * 10
        await asyncio.create_task(other())
        gone = tasks.pop()
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        answer.set()
        await asyncio.gather(*tasks)
        assert told == ["other", *["answered"] * (2 * REQUESTS_MAX - 1)]
        await asyncio.create_task(other())
        assert work.parked == 0

    asyncio.run(scenario())


def test_a_request_that_waits_above_the_limit_keeps_its_place() -> None:
    async def scenario() -> None:
        work, answer = LongWork(), asyncio.Event()
        assert work.park(PARKED_MAX - 9)

        async def forwarded() -> None:
            async with work.place(10), work.outside():
                await answer.wait()

        tasks = [asyncio.create_task(forwarded()) for _ in range(REQUESTS_MAX)]
        await turns(5)
        last = asyncio.create_task(forwarded())
        await turns(5)
        assert (work.parked, work.queued) == (PARKED_MAX - 9, 1)
        answer.set()
        await asyncio.gather(*tasks, last)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_requests_that_wait_for_their_place_again_are_counted(is_cancelled: bool) -> None:
    async def scenario() -> None:
        work, answer = LongWork(), asyncio.Event()

        async def forwarded() -> None:
            async with work.place(10):
                async with work.outside():
                    await answer.wait()
                assert work.parked == 0

        again = asyncio.create_task(forwarded())
        await turns(3)
        having, others = await in_line(work, (ELEMENTS_MAX, 0))
        assert having == [0]
        answer.set()
        await turns(3)
        assert (work.parked, work.queued) == (10, 1)
        if is_cancelled:
            await end([again])
        await end(others)
        await asyncio.gather(again, return_exceptions=True)
        assert again.cancelled() is is_cancelled
        assert (work.parked, work.queued) == (0, 0)

    asyncio.run(scenario())
