"""A node in virtual time, in which waits take no real time and have an exact length."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random

from kpybroker.client.peer import Peer
from kpybroker.server.node import Node
from kpybroker.sim.cluster.cluster import SimMachine
from kpybroker.sim.cluster.setup import NodeSetup
from kpybroker.sim.world.history import History
from kpybroker.sim.world.loop import Owner, VirtualLoop
from kpybroker.sim.world.network import Fabric, SimNetwork, Weather

ADDRESS, PORT = "10.0.0.1", 9092
Dial = Callable[[str], Awaitable[Peer]]
"""Connects a client with this client id."""


def run_virtually(
    scenario: Callable[[Node, Dial], Awaitable[None]], properties: Mapping[str, str] | None = None
) -> None:
    """Start a node in a network without delays, run the scenario, and stop the node."""
    loop = VirtualLoop()  # type: ignore[abstract]  # sockets, signals and processes have no place in it
    history = History(loop.time)
    fabric = Fabric(loop, Random(1), history, Weather(stall_odds=0.0, split_odds=0.0))
    settings = {"node.id": "1", "listeners": f"PLAINTEXT://{ADDRESS}:{PORT}", "log.dirs": "/data", **(properties or {})}
    machine = SimMachine(NodeSetup(1, ADDRESS, settings), 1, loop, fabric, history)
    network = SimNetwork(fabric, "10.0.0.9", Owner("client"))

    async def play() -> None:
        machine.start()
        while machine.node is None:
            await asyncio.sleep(0.01)
        peers: list[Peer] = []

        async def dial(client_id: str) -> Peer:
            peers.append(await Peer.dial(network, ADDRESS, PORT, client_id=client_id))
            await peers[-1].negotiate()
            return peers[-1]

        try:
            await scenario(machine.node, dial)
        finally:
            for peer in peers:
                peer.close()
            await machine.stop()

    loop.run_until_complete(play())
    assert history.breaches == []
