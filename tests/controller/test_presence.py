"""Who has ended is noticed by the connection that closed, and by the listener that refuses; nobody else is fenced."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from kpybroker.client.peer import Peer
from kpybroker.controller.presence import BETWEEN_FENCINGS_MS
from kpybroker.server.node import Node
from kpybroker.wire.rpc import broker_registration
from tests.conftest import WithBroker
from tests.handlers.strangers import Stranger, inner

LONG = {"broker.session.timeout.ms": "600000"}
"""No session ends while a test runs."""


@contextlib.asynccontextmanager
async def listening(node: Node) -> AsyncIterator[int]:
    """Somebody who accepts connections, and nothing more."""
    listener = await node.broker.world.network.listen(asyncio.Protocol, "127.0.0.1", 0)
    try:
        yield listener.port
    finally:
        listener.close()


async def unfenced(node: Node, node_id: int, port: int) -> tuple[Peer, Stranger]:
    """A live broker with a connection of its own, whose registered listener is at this port."""
    inner_port = await node.server.start("127.0.0.1", 0, "CONTROLLER", "controller")
    peer = await Peer.dial(node.broker.world.network, "127.0.0.1", inner_port)
    stranger = Stranger(peer, node.broker.cluster_id, node_id)
    at = broker_registration.Listener(name="PLAINTEXT", host="127.0.0.1", port=port)
    told = await peer.ask("BrokerRegistration", stranger.registration(listeners=[at]))
    stranger.epoch = told.broker_epoch
    assert not (await stranger.beat()).is_fenced
    return peer, stranger


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


def is_fenced(node: Node, node_id: int) -> bool:
    return node.broker.image.brokers[node_id].fenced


def test_who_is_gone_is_fenced_though_its_session_lasts(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        async with listening(node) as port:
            peer, _stranger = await unfenced(node, 2, port)
        peer.close()
        await until(lambda: is_fenced(node, 2))

    with_broker(scenario, LONG)


def test_a_listener_may_close_a_moment_after_the_connection(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        dials: list[asyncio.BaseTransport] = []

        class Closing(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                dials.append(transport)
                listener.close()

        listener = await node.broker.world.network.listen(Closing, "127.0.0.1", 0)
        peer, _stranger = await unfenced(node, 2, listener.port)
        peer.close()
        await until(lambda: is_fenced(node, 2))
        assert len(dials) == 1

    with_broker(scenario, LONG)


def test_one_at_a_time(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        peers = []
        async with listening(node) as port:
            for node_id in (2, 3):
                peers.append((await unfenced(node, node_id, port))[0])
        for peer in peers:
            peer.close()
        loop = asyncio.get_running_loop()
        await until(lambda: is_fenced(node, 2) or is_fenced(node, 3))
        first = loop.time()
        assert is_fenced(node, 2) != is_fenced(node, 3)
        await until(lambda: is_fenced(node, 2) and is_fenced(node, 3))
        assert (loop.time() - first) * 1000 > BETWEEN_FENCINGS_MS * 0.9

    with_broker(scenario, LONG)


def test_who_still_listens_is_not_fenced_and_a_new_incarnation_need_not_wait(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        async with listening(node) as port, inner(node) as other:
            peer, stranger = await unfenced(node, 2, port)
            peer.close()
            await until(lambda: not node.broker.presence._connections and not node.broker.presence._checks)
            assert not is_fenced(node, 2)
            successor = Stranger(other, node.broker.cluster_id, 2, incarnation=2)
            assert await successor.register() == 0
            assert successor.epoch > stranger.epoch

    with_broker(scenario, LONG)


def test_who_comes_back_on_another_connection_is_there(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        async with inner(node) as other:
            async with listening(node) as port:
                peer, stranger = await unfenced(node, 2, port)
                stranger.peer = other
                assert not (await stranger.beat()).is_fenced
            peer.close()
            rival = Stranger(other, node.broker.cluster_id, 2, incarnation=2)
            for _ in range(10):
                assert not (await stranger.beat()).is_fenced
            assert not node.broker.presence._checks
            assert await rival.register() != 0, "its session goes on"

    with_broker(scenario, LONG)
