"""No request delays other requests: either its row in the Api table allows only a few elements, or its handler yields.

The work in each turn of the event loop is measured by counting calls, not by measuring time.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from struct import pack
from types import FrameType
from typing import Any

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import MalformedFrame
from kpybroker.long_work import REQUESTS_MAX, LongWork
from kpybroker.replication.follower.fetch_session import NAMED_MAX
from kpybroker.replication.node.replicas import HOSTED_AT_ONCE
from kpybroker.server.node import Node
from kpybroker.server.requests.long_requests import ROWS_AT_ONCE, encoded
from kpybroker.serving.fetch.replica import NAMED_LIMIT
from kpybroker.serving.metadata_wait import served_everywhere
from kpybroker.wire.api import API, FEW, Api, Listens, by_name
from kpybroker.wire.codec.codec import parse_in_turns
from kpybroker.wire.codec.layout import layout
from kpybroker.wire.codec.parsing import ELEMENTS_AT_ONCE
from kpybroker.wire.encoded import Encoded
from kpybroker.wire.frame import request_head
from kpybroker.wire.records.batch import read_records, split
from kpybroker.wire.rpc import create_topics, fetch, metadata, produce, share_fetch
from tests.asking import batch_of, make, produced
from tests.conftest import WithBroker
from tests.server.many_elements import arrays_of, request_with_many
from tests.server.raw import raw

MANY = 4000
CALLS_A_TURN = 25_000
"""The maximum number of calls of Python and C functions in one turn, which take about ten milliseconds. Handling 4,000
elements in one turn exceeds it."""
ARRAYS = {api: list(arrays_of(layout(api.request, api.max))) for api in API}
LONG = [api for api in API if api.elements > FEW and api.listens is not Listens.CONTROLLER]
QUICK = ("Produce", "Fetch", "Metadata", "OffsetCommit", "OffsetFetch", "DeleteTopics", "DeleteRecords", "LeaveGroup")
"""The APIs that the fast tests measure. Measuring all APIs would take too long."""
SHORT = [api for api in API if api.elements <= FEW and ARRAYS[api] and api.listens is not Listens.CONTROLLER]
"""The APIs with few elements, except those of controller listeners, which other tests measure."""


class Meter:
    """Counts the function calls in each turn of the event loop."""

    def __init__(self) -> None:
        self.most = self._calls = 0
        self._is_on = True

    def _count(self, _frame: FrameType, event: str, _argument: Any) -> None:
        if event in ("call", "c_call"):
            self._calls += 1

    def _turn(self) -> None:
        self.most, self._calls = max(self.most, self._calls), 0
        if self._is_on:
            asyncio.get_running_loop().call_soon(self._turn)

    def __enter__(self) -> Meter:
        asyncio.get_running_loop().call_soon(self._turn)
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self._is_on = False


def frame_of(api: Api, path: tuple[str, ...], elements: int) -> bytes:
    body = request_head(1, api, api.max, "many") + request_with_many(api, path, elements)
    return pack(">i", len(body)) + body


@pytest.mark.parametrize(
    "api",
    [pytest.param(api, id=api.name, marks=() if api.name in QUICK else pytest.mark.slow) for api in LONG],
)
def test_many_elements_do_not_delay_others(with_broker: WithBroker, api: Api) -> None:
    calls = {}

    async def scenario(_: Any, node: Node) -> None:
        for path in ARRAYS[api]:
            async with raw(node) as client:
                for warming in (3, ELEMENTS_AT_ONCE + 100):  # objects that are created on first use
                    client.send(frame_of(api, path, warming))
                    await client.frame()
                with Meter() as meter:
                    client.send(frame_of(api, path, MANY))
                    assert await client.frame()
                calls[path] = meter.most

    with_broker(scenario)
    assert {path: most for path, most in calls.items() if most > CALLS_A_TURN} == {}


@pytest.mark.parametrize("api", SHORT, ids=lambda api: api.name)
def test_a_row_that_allows_few_elements_refuses_more_before_they_are_handled(
    with_broker: WithBroker, caplog: pytest.LogCaptureFixture, api: Api
) -> None:
    async def scenario(_: Any, node: Node) -> None:
        for path in ARRAYS[api]:
            async with raw(node) as client:
                client.send(frame_of(api, path, FEW + 1))
                assert await client.closed()

    with_broker(scenario)
    assert caplog.text.count(f"{api.name} v{api.max}: more than {FEW} elements") == len(ARRAYS[api])


@pytest.mark.parametrize("api", [each for each in API if each.elements > FEW], ids=lambda api: api.name)
def test_a_row_that_allows_many_elements_refuses_more(api: Api) -> None:
    frame = request_with_many(api, ARRAYS[api][0], api.elements + 1)
    with pytest.raises(MalformedFrame, match=f"more than {api.elements} elements"):
        for _ in parse_in_turns(api.request, api.max, frame, 0, api.elements):
            pass


def test_no_row_allows_more_than_a_large_cluster_has() -> None:
    """The limit is needed because all objects of a request are freed at once, and scanned by the garbage collector."""
    assert max(api.elements for api in API) == 100_000


def test_a_replicas_fetch_has_a_limit_on_named_partitions(
    with_broker: WithBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def asked(count: int) -> fetch.Request:
        partitions = [fetch.FetchPartition(partition=index) for index in range(count)]
        topic = fetch.FetchTopic(topic_id=bytes(15) + b"t", partitions=partitions)
        state = fetch.ReplicaState(replica_id=7)
        return fetch.Request(session_epoch=-1, max_wait_ms=0, replica_state=state, topics=[topic])

    async def scenario(_: Any, node: Node) -> None:
        async with raw(node) as client:
            client.ask(1, "Fetch", asked(NAMED_LIMIT), 17)
            assert len((await client.answer("Fetch", 17))[1].responses[0].partitions) == NAMED_LIMIT
            client.ask(2, "Fetch", asked(NAMED_LIMIT + 1), 17)
            assert await client.closed()

    with_broker(scenario)
    assert f"names more than {NAMED_LIMIT} partitions" in caplog.text
    assert 2 * NAMED_MAX <= NAMED_LIMIT, "no follower names that many partitions"


def test_the_logs_of_a_large_topic_are_opened_in_turns(with_broker: WithBroker) -> None:
    """The topic is usable when its creator has the response, although its logs are opened over several turns."""
    count = 10 * HOSTED_AT_ONCE

    async def scenario(peer: Peer, node: Node) -> None:
        hosting, topic = (
            node.broker.replication.hosting,
            create_topics.CreatableTopic(name="large", num_partitions=count, replication_factor=1),
        )
        asked = create_topics.Request(topics=[topic], timeout_ms=30_000)
        making = asyncio.ensure_future(peer.ask("CreateTopics", asked))
        most = before = 0
        while not making.done():
            await asyncio.sleep(0)
            opened = len(list(hosting))
            most, before = max(most, opened - before), opened
        assert making.result().topics[0].error_code == 0
        assert 0 < most <= HOSTED_AT_ONCE
        assert all(hosting.leads("large", index) for index in range(count))

    with_broker(scenario)


def test_waiting_for_logs_ends_at_the_deadline(with_broker: WithBroker) -> None:
    count = 10 * HOSTED_AT_ONCE

    async def scenario(peer: Peer, node: Node) -> None:
        broker = node.broker
        topic = create_topics.CreatableTopic(name="large", num_partitions=count, replication_factor=1)
        asked = create_topics.Request(topics=[topic], timeout_ms=30_000)
        making = asyncio.ensure_future(peer.ask("CreateTopics", asked))
        while broker.replication.hosting.find("large", 0) is None:
            await asyncio.sleep(0)
        await served_everywhere(broker, asyncio.get_running_loop().time())
        assert broker.replication.hosting.find("large", count - 1) is None, "the remaining logs are opened later"
        await making
        assert broker.replication.hosting.find("large", count - 1) is not None

    with_broker(scenario)


def test_changes_of_a_topic_whose_logs_are_being_opened_apply(with_broker: WithBroker) -> None:
    """The remaining logs are opened with the new settings, or not at all if the topic has been deleted."""
    count = 5 * HOSTED_AT_ONCE // 2

    async def scenario(peer: Peer, node: Node) -> None:
        broker = node.broker
        for name in ("changed", "deleted"):
            topic = create_topics.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
            making = asyncio.ensure_future(
                peer.ask("CreateTopics", create_topics.Request(topics=[topic], timeout_ms=30_000))
            )
            while broker.replication.hosting.find(name, 0) is None:
                await asyncio.sleep(0)
            assert broker.replication.hosting.find(name, count - 1) is None
            image = broker.metadata.image
            if name == "changed":
                settings = replace(broker.replication.hosting.leads(name, 0).log.settings, retention_ms=1234)
                broker.replication.replicas.configure(name, settings)
            else:
                broker.replication.replicas.let_go(image.topics[name])
            await making
        assert broker.replication.hosting.leads("changed", count - 1).log.settings.retention_ms == 1234
        assert broker.replication.hosting.find("deleted", count - 1) is None

    with_broker(scenario)


def test_a_long_response_to_a_short_request_does_not_delay_others(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for at in range(0, 2000, 500):
            topics = [create_topics.CreatableTopic(name=f"t{at + n}", num_partitions=1) for n in range(500)]
            await peer.ask("CreateTopics", create_topics.Request(topics=topics, timeout_ms=30_000))
        everything = metadata.Request(topics=None)
        with Meter() as meter:
            told = await asyncio.gather(*(ask_metadata(node, everything) for _ in range(5)))
        assert meter.most <= CALLS_A_TURN
        assert len(set(told)) == 1
        assert len(node.broker.metadata.answers) == 1, "equal requests in the meantime share one response"

    with_broker(scenario)


async def ask_metadata(node: Node, request: metadata.Request) -> bytes:
    async with raw(node) as client:
        client.ask(1, "Metadata", request, 12)
        return await client.frame()


def test_one_piece_of_one_long_request_runs_in_each_turn(with_broker: WithBroker) -> None:
    api = by_name["Metadata"]

    async def scenario(peer: Peer, node: Node) -> None:
        work = node.broker.long_work
        clients = [await asyncio.open_connection(*node.bootstrap.split(":")) for _ in range(REQUESTS_MAX + 2)]
        frame = frame_of(api, ("topics",), 2 * ELEMENTS_AT_ONCE)
        for _, writer in clients:
            writer.write(frame)
        pieces, before = 0, work.turns
        reading = asyncio.gather(*(reader.readexactly(4) for reader, _ in clients))
        while not reading.done():
            await asyncio.sleep(0)
            pieces, before = max(pieces, work.turns - before), work.turns
        for _, writer in clients:
            writer.transport.abort()
        assert pieces == 1

    with_broker(scenario)


@pytest.mark.slow
def test_work_for_a_disconnected_client_ends(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        work = node.broker.long_work
        _, writer = await asyncio.open_connection(*node.bootstrap.split(":"))
        writer.write(frame_of(by_name["Metadata"], ("topics",), 100_000))
        while work.turns < 10:
            await asyncio.sleep(0)
        writer.transport.abort()
        while node.server.dispatcher.tasks:
            await asyncio.sleep(0)
        assert work.turns <= 201, "parsing takes 200 turns, and the request is not handled"

    with_broker(scenario)


@pytest.mark.slow
def test_a_produce_of_many_partitions_is_appended_unchanged(with_broker: WithBroker) -> None:
    """Its records stay in the receive buffer until they are written, and the next request does not overwrite them."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", 1500)
        values = [b"value %d" % index for index in range(1500)]
        data = [
            produce.PartitionProduceData(index=index, records=batch_of(value)) for index, value in enumerate(values)
        ]
        long = produce.Request(
            acks=1, timeout_ms=5000, topic_data=[produce.TopicProduceData(name="t", partition_data=data)]
        )
        told, behind = await asyncio.gather(
            peer.ask("Produce", long, version=9), peer.ask("Produce", produced("t", b"behind"), version=9)
        )
        rows = told.responses[0].partition_responses
        assert [(row.index, row.error_code, row.base_offset) for row in rows] == [(n, 0, 0) for n in range(1500)]
        assert behind.responses[0].partition_responses[0].base_offset == 1
        for index, value in enumerate(values):
            log = node.broker.replication.hosting.find("t", index).log
            found = log.read(0, 1 << 20, upper=log.end, min_one=True)
            batches = split(memoryview(found))
            stored = [record.value for batch in batches for record in read_records(batch)]
            assert stored == ([value, b"behind"] if index == 0 else [value])
            assert all(batch.crc_ok() for batch in batches)

    with_broker(scenario)


def test_places_are_given_in_order_and_returned() -> None:
    async def scenario() -> None:
        work, order = LongWork(), []
        go_on = asyncio.Event()

        async def ask(number: int) -> None:
            async with work.place():
                order.append(number)
                await go_on.wait()

        tasks = [asyncio.create_task(ask(number)) for number in range(REQUESTS_MAX + 5)]
        await asyncio.sleep(0)
        assert order == list(range(REQUESTS_MAX))
        tasks[REQUESTS_MAX].cancel()
        tasks[0].cancel()
        go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [number for number in range(REQUESTS_MAX + 5) if number != REQUESTS_MAX]
        async with work.place():
            pass

    asyncio.run(scenario())


@pytest.mark.parametrize("partitions", [ROWS_AT_ONCE - 1, ROWS_AT_ONCE])
def test_the_records_of_a_share_fetch_are_not_copied_unless_it_has_many_rows(partitions: int) -> None:
    row = share_fetch.PartitionData(records=memoryview(b"records"))
    topic = share_fetch.ShareFetchableTopicResponse(partitions=[row] * partitions)
    response = share_fetch.Response(responses=[topic])
    told = asyncio.run(encoded(LongWork(), 2, response))
    assert (told is response) == (partitions < ROWS_AT_ONCE)
    assert told is response or isinstance(told, Encoded)
