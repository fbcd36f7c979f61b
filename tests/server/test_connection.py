"""Guarantees of a connection: replies are in order, limits apply, and an invalid frame affects no other connection."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path
from struct import pack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kpybroker.client.peer import Peer
from kpybroker.server.node import Node
from kpybroker.server.server import Server
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import api_versions, list_offsets, metadata
from tests.asking import fetched, make, produced
from tests.conftest import WithBroker
from tests.server.raw import Raw, raw
from tests.serving import serving

pytestmark = pytest.mark.slow

SOFTWARE = api_versions.Request(client_software_name="raw", client_software_version="1")
BAD_FRAMES = {
    "too large": pack(">i", 1 << 30) + b"x" * 64,
    "negative": pack(">i", -5) + b"x" * 64,
    "too small for a header": pack(">i", 3) + b"abc",
    "unknown api key": pack(">ihhih", 10, 9999, 0, 1, -1),
    "version not served": pack(">ihhih", 10, 0, 99, 1, -1),
    "client id longer than the frame": pack(">ihhih", 10, 18, 0, 1, 500),
    "client id not UTF-8": pack(">ihhih", 12, 18, 0, 1, 2) + b"\xff\xfe",
    "a produce of garbage": pack(">ihhih", 20, 0, 9, 1, -1) + b"\xff" * 10,
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


TRUE_CAUSES = {
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03": "a TLS ClientHello, and this listener does not use TLS; set",
    b"\x16\x03\x03\x00\x7a\x01\x00\x00\x76": "a TLS ClientHello",
    b"GET /metrics HTTP/1.1\r\n\r\n": "'GET ', as HTTP does, and this listener speaks Kafka's protocol; kpybroker",
    b"POST / HTTP/1.1\r\n\r\n": "'POST', as HTTP does",
    b"PRI * HTTP/2.0\r\n\r\n": "'PRI ', as HTTP does",
    b"\x7f\xff\xff\xff" + bytes(8): "frame size 2147483647 is not between 8 and",
    b"\x16\x04" + bytes(8): "frame size 369360896 is not",
}


async def is_alive(peer: Peer) -> bool:
    return bool((await peer.ask("ApiVersions", SOFTWARE, version=4)).api_keys)


@pytest.mark.parametrize("bad", BAD_FRAMES)
def test_a_bad_frame_closes_its_own_connection_and_logs_one_line(
    bad: str, with_broker: WithBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        with caplog.at_level(logging.WARNING, logger="kpybroker"):
            async with raw(node) as other:
                other.send(BAD_FRAMES[bad])
                assert await other.closed()
                host, port = other.writer.get_extra_info("sockname")
        lines = [r.getMessage() for r in caplog.records if r.name.startswith("kpybroker.server")]
        assert len(lines) == 1
        assert f"{host}:{port}" in lines[0]
        assert await is_alive(peer)

    with_broker(scenario)


@pytest.mark.parametrize("first", TRUE_CAUSES)
def test_a_client_of_another_protocol_gets_an_explanation_in_the_log(
    first: bytes, with_broker: WithBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        with caplog.at_level(logging.WARNING, logger="kpybroker"):
            async with raw(node) as other:
                other.send(first)
                assert await other.closed()
        (line,) = [r.getMessage() for r in caplog.records if r.name.startswith("kpybroker.server")]
        assert TRUE_CAUSES[first] in line

    with_broker(scenario)


def test_earlier_replies_are_sent_before_a_bad_frame_closes(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with raw(node) as other:
            other.ask(1, "ApiVersions", SOFTWARE, 4)
            other.ask(2, "Metadata", metadata.Request(topics=[]), 12)
            other.send(BAD_FRAMES["unknown api key"])
            assert (await other.answer("ApiVersions", 4))[0] == 1
            assert (await other.answer("Metadata", 12))[0] == 2
            assert await other.closed()

    with_broker(scenario)


def test_an_incomplete_frame_waits_and_affects_no_other_connection(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with raw(node) as other:
            other.send(pack(">ih", 100, 18))
            await other.writer.drain()
            assert await is_alive(peer)

    with_broker(scenario)


def test_an_unknown_version_of_api_versions_is_answered_in_v0(with_broker: WithBroker) -> None:
    """The response has error 35 and the version range of key 18, so that the client can try again (KIP-511)."""

    async def scenario(peer: Peer, node: Node) -> None:
        async with raw(node) as other:
            other.send_frame(pack(">hhih", 18, 77, 5, -1) + b"\0whatever this version holds")
            correlation_id, told = await other.answer("ApiVersions", 0)
            assert (correlation_id, told.error_code) == (5, 35)
            row = api_table.by_key[18]
            assert [(k.api_key, k.min_version, k.max_version) for k in told.api_keys] == [(18, row.min, row.max)]
            other.ask(6, "ApiVersions", SOFTWARE, 4)
            assert (await other.answer("ApiVersions", 4))[1].error_code == 0

    with_broker(scenario)


def test_frames_arrive_in_any_pieces(with_broker: WithBroker) -> None:
    """Every request has a response, in order, however the stream is divided."""

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cuts=st.lists(st.integers(1, 400), max_size=12), count=st.integers(1, 40))
    def law(cuts: list[int], count: int) -> None:
        async def scenario(node: Node) -> None:
            async with raw(node) as other:
                stream = b"".join(
                    pack(">i", len(body)) + body
                    for body in (pack(">hhih", 18, 0, number, 3) + b"raw" for number in range(count))
                )
                at = 0
                for cut in cuts:
                    other.send(stream[at : at + cut])
                    await other.writer.drain()
                    at += cut
                other.send(stream[at:])
                for number in range(count):
                    assert (await other.answer("ApiVersions", 0))[0] == number

        loop.run_until_complete(scenario(node))

    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory() as folder:
        context = serving(Path(folder))
        node = loop.run_until_complete(context.__aenter__())
        law()
        loop.run_until_complete(context.__aexit__(None, None, None))
    loop.close()


def test_replies_are_sent_in_request_order(with_broker: WithBroker) -> None:
    """A Produce waits for its write, and the following ApiVersions does not. Their responses are in order
    nevertheless."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        async with raw(node) as other:
            for number in range(0, 60, 2):
                other.ask(number, "Produce", produced("t", b"x"), 9)
                other.ask(number + 1, "ApiVersions", SOFTWARE, 4)
            for number in range(0, 60, 2):
                correlation_id, told = await other.answer("Produce", 9)
                assert correlation_id == number
                assert told.responses[0].partition_responses[0].base_offset == number // 2
                assert (await other.answer("ApiVersions", 4))[0] == number + 1

    with_broker(scenario)


def test_acks_0_gets_no_reply_and_a_refusal_closes(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        async with raw(node) as other:
            other.ask(1, "Produce", produced("t", b"x", acks=0), 9)
            other.ask(2, "ApiVersions", SOFTWARE, 4)
            assert (await other.answer("ApiVersions", 4))[0] == 2
            other.ask(3, "Produce", produced("absent", b"x", acks=0), 9)
            assert await other.closed()
        partition = node.broker.replication.hosting.find("t", 0)
        assert partition is not None
        assert partition.log.end == 1

    with_broker(scenario)


async def parked(other: Raw) -> None:
    """Wait long enough for the broker to process the sent bytes, which takes one turn of the event loop for each
    read."""
    await other.writer.drain()
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_parked_fetch_gives_way_to_another_kind_of_request(with_broker: WithBroker) -> None:
    """Otherwise every seek of a Java client, and every small read by Spark, would wait for max_wait_ms."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        async with raw(node) as other:
            other.ask(1, "Fetch", fetched("t", 0, wait_ms=600_000), 12)
            await parked(other)
            wanted = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
            topic = list_offsets.ListOffsetsTopic(name="t", partitions=[wanted])
            other.ask(2, "ListOffsets", list_offsets.Request(replica_id=-1, topics=[topic]), 9)
            assert (await other.answer("Fetch", 12))[0] == 1
            assert (await other.answer("ListOffsets", 9))[0] == 2

    with_broker(scenario)


def test_a_fetch_that_gave_way_recently_gives_way_again(with_broker: WithBroker) -> None:
    """It gives way after a pause, but long before its max_wait_ms of ten minutes."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        async with raw(node) as other:
            for number in range(0, 6, 2):
                other.ask(number, "Fetch", fetched("t", 0, wait_ms=600_000), 12)
                other.ask(number + 1, "Metadata", metadata.Request(topics=[]), 12)
            for number in range(0, 6, 2):
                assert (await other.answer("Fetch", 12))[0] == number
                assert (await other.answer("Metadata", 12))[0] == number + 1

    with_broker(scenario)


def test_fetchers_on_one_socket_do_not_make_each_other_return(with_broker: WithBroker) -> None:
    """A waiting Fetch does not give way to a Fetch or a Produce. Four of them take four waits, without a busy loop."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await make(peer, "other")
        async with raw(node) as one:
            for number in range(4):
                one.ask(number, "Fetch", fetched("t", 0, wait_ms=50), 12)
            one.ask(4, "Produce", produced("other", b"x"), 9)
            loop = asyncio.get_running_loop()
            began = loop.time()
            for number in range(4):
                assert (await one.answer("Fetch", 12))[0] == number
            assert loop.time() - began >= 4 * 0.05 - 0.01  # each Fetch waited for its whole max_wait_ms
            assert (await one.answer("Produce", 9))[0] == 4

    with_broker(scenario)


def test_a_parked_fetch_is_woken_by_a_produce_of_another_connection(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        async with raw(node) as other:
            other.ask(1, "Fetch", fetched("t", 0, wait_ms=600_000), 12)
            await parked(other)
            await peer.ask("Produce", produced("t", b"hello"), version=9)
            told = (await other.answer("Fetch", 12))[1]
            assert b"hello" in bytes(told.responses[0].partitions[0].records)

    with_broker(scenario)


def test_connections_above_the_limit_are_refused_until_others_close(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with raw(node) as second:
            second.ask(1, "ApiVersions", SOFTWARE, 4)
            assert (await second.answer("ApiVersions", 4))[0] == 1
            async with raw(node) as third:
                assert await third.closed()
        for _ in range(200):
            async with raw(node) as again:
                again.ask(2, "ApiVersions", SOFTWARE, 4)
                try:
                    assert (await again.answer("ApiVersions", 4))[0] == 2
                except (asyncio.IncompleteReadError, ConnectionResetError):
                    continue  # the broker has not detected yet that the second connection was closed
                break
        else:
            raise AssertionError("no connection was closed")

    with_broker(scenario, {"max.connections": "2"})


def test_an_address_may_have_a_limit_of_its_own(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with raw(node) as second:
            assert await second.closed()

    with_broker(scenario, {"max.connections.per.ip.overrides": "10.0.0.1:7, localhost:1"})


def test_a_frame_at_the_limit_is_served_and_one_byte_more_is_refused(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        limit = 4096
        head = pack(">hhih", 18, 0, 1, limit - 10)
        async with raw(node) as other:
            other.send_frame(head + b"c" * (limit - 10))
            assert (await other.answer("ApiVersions", 0))[0] == 1
            other.send_frame(head + b"c" * (limit - 10) + b"!")
            assert await other.closed()

    with_broker(scenario, {"socket.request.max.bytes": "4096"})


def test_large_frames_wait_for_memory_and_all_are_served(with_broker: WithBroker) -> None:
    """queued.max.request.bytes is much less than the bytes that ten connections send at the same time."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")

        async def one(number: int) -> None:
            async with raw(node) as other:
                for _ in range(3):
                    other.ask(number, "Produce", produced("t", b"x" * 300_000), 9)
                for _ in range(3):
                    told = (await other.answer("Produce", 9))[1]
                    assert told.responses[0].partition_responses[0].error_code == 0

        await asyncio.gather(*[one(number) for number in range(10)])
        partition = node.broker.replication.hosting.find("t", 0)
        assert partition is not None
        assert partition.log.end == 30

    with_broker(scenario, {"queued.max.request.bytes": "400000", "socket.request.max.bytes": "400000"})


def test_a_stop_answers_parked_fetches(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        async with raw(node) as other:
            other.ask(1, "Fetch", fetched("t", 0, wait_ms=600_000), 12)
            await parked(other)
            await node.server.stop()
            assert (await other.answer("Fetch", 12))[0] == 1
            assert await other.closed()

    with_broker(scenario)


def test_a_stop_ends_although_clients_keep_asking(with_broker: WithBroker) -> None:
    """A replica sends the next Fetch when it has a response. When the broker stops, it receives only one response."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        async with raw(node) as other:
            other.ask(1, "Fetch", fetched("t", 0, wait_ms=600_000), 12)
            await parked(other)
            answers = 0

            async def ask_for_ever() -> None:
                nonlocal answers
                while True:
                    answers = (await other.answer("Fetch", 12))[0]
                    other.ask(answers + 1, "Fetch", fetched("t", 0, wait_ms=600_000), 12)

            asking = asyncio.create_task(ask_for_ever())
            await node.server.stop()
            await asyncio.gather(asking, return_exceptions=True)
            assert answers == 1

    with_broker(scenario)


def test_requests_before_the_registration_are_answered_after_it(tmp_path: Path) -> None:
    """Requests wait while the node listens but does not serve yet. They neither wait forever nor fail."""

    async def whole() -> None:
        async with serving(tmp_path) as node:
            early = Server(node.broker)
            port = await early.start("127.0.0.1", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            client = Raw(reader, writer)
            client.ask(1, "ApiVersions", SOFTWARE, 4)
            await parked(client)
            early.begin_serving()
            assert (await client.answer("ApiVersions", 4))[0] == 1
            await early.stop()

    asyncio.run(asyncio.wait_for(whole(), 30))
