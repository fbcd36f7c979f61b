"""A follower of the quorum continues to fetch, whenever its leader changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kpybroker.client.dialer import Dialer
from kpybroker.raft.core.state import Tail, VoteAsked
from kpybroker.sim.cluster.setup import CONTROLLER_PORT
from kpybroker.sim.world.network import SimNetwork
from tests.replication.virtual import VirtualCluster, play


class WatchedNetwork:
    """A node's network. Calls `on_answer` with the transport after the first response from the given address."""

    def __init__(self, network: SimNetwork, address: tuple[str, int], on_answer: Callable[[asyncio.Transport], None]):
        self._network = network
        self._address = address
        self._on_answer = on_answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    async def connect(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: Any = None) -> Any:
        transport, protocol = await self._network.connect(factory, host, port, tls)
        if (host, port) == self._address:
            assert isinstance(protocol, asyncio.Protocol)
            take, received = protocol.data_received, bytearray()

            def take_first(data: bytes) -> None:
                received.extend(data)
                is_whole = len(received) >= 4 + int.from_bytes(received[:4])
                if is_whole:
                    protocol.data_received = take  # type: ignore[method-assign]
                take(data)
                if is_whole:
                    self._on_answer(transport)

            protocol.data_received = take_first  # type: ignore[method-assign]
        return transport, protocol


def test_a_follower_leaves_a_leader_that_changes_during_the_handshake() -> None:
    """The connection becomes ready at the moment at which it is no longer needed."""

    async def scene(cluster: VirtualCluster) -> None:
        leader = next(node_id for node_id, broker in cluster.brokers.items() if broker.quorum.is_leader)
        follower, candidate = (node_id for node_id in cluster.machines if node_id != leader)
        broker, machine = cluster.broker(follower), cluster.machines[follower]
        quorum = broker.quorum
        dropped: list[asyncio.Transport] = []

        def change_leader(transport: asyncio.Transport) -> None:
            quorum.driver.dialer = plain
            asked = VoteAsked(candidate, quorum.epoch + 1, Tail(quorum.epoch, quorum.log.end), is_pre_vote=False)
            assert quorum.driver.step(asked)
            assert transport.is_closing(), "this was the connection for fetches"
            dropped.append(transport)

        assert machine.process is not None
        network, plain = machine.process.world.network, quorum.driver.dialer
        watched = WatchedNetwork(network, (cluster.machines[leader].setup.address, CONTROLLER_PORT), change_leader)
        quorum.driver.dialer = Dialer(watched)  # type: ignore[arg-type]
        cluster.fabric.reset_between(machine.setup.address, cluster.machines[leader].setup.address)
        await cluster.until(lambda: bool(dropped), "the follower has connected to its leader again")
        await cluster.create((1,), topic="after")
        await cluster.until(
            lambda: "after" in broker.metadata.image.topics, "the follower fetches from the next leader"
        )
        assert cluster.broker(follower) is broker, "it has not failed"

    play(scene)
