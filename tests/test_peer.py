"""Tests that a Peer returns every reply to the caller that sent the request, and refuses streams that are not
Kafka's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from struct import pack
from typing import Any

import pytest

from kpybroker.client.peer import REPLY_LIMIT_BYTES, Peer
from kpybroker.errors import KafkaError, MalformedFrame
from kpybroker.server.node import Node
from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import metadata
from kpybroker.world.real import RealWorld
from tests.conftest import WithBroker


def against(reply: bytes, scenario: Callable[[Peer], Awaitable[None]], *, then_close: bool = False) -> None:
    """Run a scenario with a Peer that is connected to a server which responds to the first bytes with `reply`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(reply)
        if not then_close:
            await reader.read()
        writer.close()

    async def whole() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        world = RealWorld(1)
        peer = await Peer.dial(world.network, "127.0.0.1", server.sockets[0].getsockname()[1])
        await scenario(peer)
        peer.close()
        server.close()
        world.close()

    asyncio.run(asyncio.wait_for(whole(), 20))


def test_replies_are_matched_to_their_requests(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        asked = [peer.ask("Metadata", metadata.Request(topics=[]), version=v) for v in (1, 13, 4, 9)]
        asked += [peer.ask("ApiVersions", version=v) for v in (0, 2)]
        answers = await asyncio.gather(*asked)
        assert [len(answer.brokers) for answer in answers[:4]] == [1, 1, 1, 1]
        assert all(answer.api_keys for answer in answers[4:])

    with_broker(scenario)


def test_a_cancelled_request_does_not_affect_the_next(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        given_up = asyncio.ensure_future(peer.ask("ApiVersions", version=0))
        await asyncio.sleep(0)
        given_up.cancel()
        assert len((await peer.ask("Metadata", metadata.Request(topics=[]))).brokers) == 1
        assert peer.is_open

    with_broker(scenario)


def test_a_request_that_cannot_be_encoded_does_not_affect_the_next(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        wrong: Any = b"t"
        with pytest.raises(ValueError, match="bytes instead of str"):
            await peer.ask("Metadata", metadata.Request(topics=[metadata.MetadataRequestTopic(name=wrong)]))
        assert len((await peer.ask("Metadata", metadata.Request(topics=[]))).brokers) == 1

    with_broker(scenario)


def test_the_version_is_the_highest_that_both_support() -> None:
    peer = Peer("test")
    fetch = by_name["Fetch"]
    assert peer.best_version(fetch) == fetch.max
    peer.versions = {fetch.key: (0, 11)}
    assert peer.best_version(fetch) == 11
    peer.versions = {fetch.key: (0, fetch.min - 1)}
    with pytest.raises(MalformedFrame):
        peer.best_version(fetch)
    with pytest.raises(MalformedFrame):
        peer.best_version(by_name["Metadata"])


@pytest.mark.parametrize(
    "reply",
    [
        pack(">i", -1),
        pack(">i", 3),
        pack(">i", REPLY_LIMIT_BYTES + 1),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        pack(">ii", 4, 2),
        pack(">iihi", 10, 1, 0, 2**31 - 1),
        pack(">iih", 6, 1, 0),
        pack(">iihib", 11, 1, 0, 0, 7),
    ],
    ids=["negative", "short", "huge", "another protocol", "not its number", "a count too large", "cut", "bytes left"],
)
def test_an_invalid_reply_ends_the_connection(reply: bytes) -> None:
    async def scenario(peer: Peer) -> None:
        first = asyncio.ensure_future(peer.ask("ApiVersions", version=0))
        second = asyncio.ensure_future(peer.ask("ApiVersions", version=0))
        with pytest.raises(MalformedFrame):
            await first
        with pytest.raises((MalformedFrame, ConnectionError)):
            await second
        assert not peer.is_open
        with pytest.raises(ConnectionError):
            await peer.ask("ApiVersions", version=0)

    against(reply, scenario)


def test_an_unexpected_reply_ends_the_connection() -> None:
    empty = pack(">iihi", 10, 1, 0, 0)

    async def scenario(peer: Peer) -> None:
        assert (await peer.ask("ApiVersions", version=0)).api_keys == []
        assert not peer.is_open

    against(empty + empty, scenario)


def test_a_lost_connection_is_reported_to_all_callers() -> None:
    async def scenario(peer: Peer) -> None:
        asked = [asyncio.ensure_future(peer.ask("ApiVersions", version=0)) for _ in range(3)]
        for each in asked:
            with pytest.raises(ConnectionError):
                await each
        assert not peer.is_open

    against(b"\x00", scenario, then_close=True)


def test_a_broker_that_refuses_api_versions() -> None:
    async def scenario(peer: Peer) -> None:
        with pytest.raises(KafkaError):
            await peer.negotiate()

    against(pack(">iihi", 10, 1, 35, 0), scenario)


def test_a_closed_port() -> None:
    async def dial() -> None:
        world = RealWorld(1)
        with pytest.raises(ConnectionRefusedError):
            await Peer.dial(world.network, "127.0.0.1", 1)
        world.close()

    asyncio.run(dial())
