"""A broker that has ended is detected by its closed connection and a listener that refuses connections. No other broker
is fenced."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from kpybroker.client.peer import Peer
from kpybroker.controller.presence import BETWEEN_FENCINGS_MS
from kpybroker.sim.cluster.setup import CONTROLLER_PORT
from kpybroker.wire.rpc import broker_registration
from tests.handlers.strangers import Stranger
from tests.replication import virtual
from tests.replication.virtual import VirtualCluster

LONG_MS = 600_000
"""A session timeout that is longer than a test."""
LATER_S = 30.0
"""A time that is longer than the check of a broker."""


def play(scene: Callable[[VirtualCluster], Awaitable[None]]) -> None:
    """Run one node in virtual time. The brokers of the test are on the client's machine."""
    virtual.play(scene, 1, broker_session_timeout_ms=str(LONG_MS))


@contextlib.asynccontextmanager
async def listening(cluster: VirtualCluster) -> AsyncIterator[int]:
    """A listener that accepts connections and does nothing else."""
    listener = await cluster.client.network.listen(asyncio.Protocol, cluster.client.network.address, 0)
    try:
        yield listener.port
    finally:
        listener.close()


async def dialled(cluster: VirtualCluster) -> Peer:
    """A connection to the controller listener of the node."""
    peer = await Peer.dial(cluster.client.network, cluster.machines[1].setup.address, CONTROLLER_PORT)
    await peer.negotiate()
    return peer


async def unfenced(cluster: VirtualCluster, node_id: int, port: int) -> tuple[Peer, Stranger]:
    """A live broker with its own connection, and with its registered listener at this port."""
    peer = await dialled(cluster)
    stranger = Stranger(peer, cluster.broker(1).storage.cluster_id, node_id)
    at = broker_registration.Listener(name="PLAINTEXT", host=cluster.client.network.address, port=port)
    told = await peer.ask("BrokerRegistration", stranger.registration(listeners=[at]))
    stranger.epoch = told.broker_epoch
    assert not (await stranger.beat()).is_fenced
    return peer, stranger


def is_fenced(cluster: VirtualCluster, node_id: int) -> bool:
    return cluster.broker(1).metadata.image.brokers[node_id].fenced


def test_a_dead_broker_is_fenced_before_its_session_expires() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        async with listening(cluster) as port:
            peer, _stranger = await unfenced(cluster, 2, port)
        peer.close()
        await cluster.until(lambda: is_fenced(cluster, 2), "it is fenced")

    play(scene)


def test_a_listener_may_close_a_moment_after_the_connection() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        dials: list[asyncio.BaseTransport] = []

        class Closing(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                dials.append(transport)
                listener.close()

        listener = await cluster.client.network.listen(Closing, cluster.client.network.address, 0)
        peer, _stranger = await unfenced(cluster, 2, listener.port)
        peer.close()
        await cluster.until(lambda: is_fenced(cluster, 2), "it is fenced")
        assert len(dials) == 1

    play(scene)


def test_brokers_are_fenced_one_at_a_time() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        peers = []
        async with listening(cluster) as port:
            for node_id in (2, 3):
                peers.append((await unfenced(cluster, node_id, port))[0])
        for peer in peers:
            peer.close()
        first_s = await cluster.until(lambda: is_fenced(cluster, 2) or is_fenced(cluster, 3), "one is fenced")
        assert is_fenced(cluster, 2) != is_fenced(cluster, 3)
        both_s = await cluster.until(lambda: is_fenced(cluster, 2) and is_fenced(cluster, 3), "both are fenced")
        assert (both_s - first_s) * 1000 > BETWEEN_FENCINGS_MS * 0.9

    play(scene)


def test_a_broker_that_still_listens_is_not_fenced_and_a_new_incarnation_need_not_wait() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        async with listening(cluster) as port:
            other = await dialled(cluster)
            peer, stranger = await unfenced(cluster, 2, port)
            peer.close()
            await asyncio.sleep(LATER_S)
            assert not is_fenced(cluster, 2)
            successor = Stranger(other, cluster.broker(1).storage.cluster_id, 2, incarnation=2)
            assert await successor.register() == 0
            assert successor.epoch > stranger.epoch

    play(scene)


def test_a_broker_that_returns_on_another_connection_is_live() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        other = await dialled(cluster)
        async with listening(cluster) as port:
            peer, stranger = await unfenced(cluster, 2, port)
            stranger.peer = other
            assert not (await stranger.beat()).is_fenced
        peer.close()
        await asyncio.sleep(LATER_S)
        assert not is_fenced(cluster, 2)
        assert not (await stranger.beat()).is_fenced
        rival = Stranger(other, cluster.broker(1).storage.cluster_id, 2, incarnation=2)
        assert await rival.register() != 0, "its session continues"

    play(scene)
