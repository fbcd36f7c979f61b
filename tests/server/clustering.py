"""Clusters of several real nodes with real sockets and directories, in the event loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from kpybroker.client.peer import Peer
from kpybroker.config import BrokerConfig, parse_config
from kpybroker.server.node import Node
from kpybroker.world.real import RealWorld
from oracle.target import steady_port

QUICK = {
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.election.backoff.max.ms": "100",
    "controller.quorum.fetch.timeout.ms": "600",
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "200",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}
PATIENCE_S = 20.0


def free_ports(count: int) -> list[int]:
    """Ports that no other process uses while their nodes are down."""
    return [steady_port() for _ in range(count)]


class Cluster:
    """A cluster. Nodes 1 to n are brokers, controllers and voters. Other nodes are only brokers."""

    def __init__(self, root: Path, voters: int = 3, settings: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.settings = {**QUICK, **(settings or {})}
        self.ports = dict(enumerate(free_ports(voters), 1))
        self.nodes: dict[int, Node] = {}
        self._worlds: dict[int, RealWorld] = {}
        self._starts = 0
        """The number of starts. It is the random seed of each start, so that a node has a new incarnation id."""

    def config(self, node_id: int) -> BrokerConfig:
        """The settings of a node, with a free port for clients."""
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in self.ports.items())
        own = {"process.roles": "broker", "listeners": "PLAINTEXT://127.0.0.1:0"}
        if node_id in self.ports:
            controller = f"CONTROLLER://127.0.0.1:{self.ports[node_id]}"
            own = {"process.roles": "broker,controller", "listeners": f"PLAINTEXT://127.0.0.1:0,{controller}"}
        where = {"node.id": str(node_id), "log.dirs": str(self.root / str(node_id))}
        return parse_config({"controller.quorum.voters": voters, **own, **where, **self.settings})

    async def start(self, *node_ids: int) -> None:
        """Start nodes together. All of them serve when this returns."""
        for node_id in node_ids:
            self._starts += 1
            self._worlds[node_id] = RealWorld(seed=self._starts)
        started = await asyncio.gather(
            *(Node.start(self._worlds[node_id], self.config(node_id)) for node_id in node_ids)
        )
        self.nodes.update(zip(node_ids, started, strict=True))

    async def stop(self, node_id: int) -> None:
        """Stop a node cleanly."""
        await self.nodes.pop(node_id).stop()
        self._worlds.pop(node_id).close()

    async def close(self) -> None:
        """Stop all running nodes without a controlled shutdown, which would need a majority."""
        for node_id in list(self.nodes):
            await self.drop(node_id)

    async def drop(self, node_id: int) -> None:
        """Stop a node without a controlled shutdown."""
        node = self.nodes.pop(node_id)
        await node.server.stop()
        await node.broker.close()
        self._worlds.pop(node_id).close()

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until `holds` returns true. `what` describes the condition."""
        for _ in range(int(PATIENCE_S / 0.02)):
            if holds():
                return
            await asyncio.sleep(0.02)
        states = {
            node_id: (node.broker.quorum.state.role, node.broker.quorum.epoch) for node_id, node in self.nodes.items()
        }
        raise AssertionError(f"timed out waiting until {what}: {states}")

    async def leader(self) -> int:
        """The active controller, once all running nodes agree on it."""

        def agreed() -> bool:
            quorums = [node.broker.quorum for node in self.nodes.values()]
            leaders = {(quorum.epoch, quorum.leader_id) for quorum in quorums}
            return len(leaders) == 1 and sum(quorum.is_active for quorum in quorums) == 1

        await self.until(agreed, "all nodes know the same active controller")
        return next(node_id for node_id, node in self.nodes.items() if node.broker.quorum.is_active)


async def dialled(node: Node) -> Peer:
    """Connect to a node's listener for clients, and negotiate API versions."""
    host, _, port = node.bootstrap.rpartition(":")
    peer = await Peer.dial(node.broker.world.network, host, int(port))
    await peer.negotiate()
    return peer


def run_cluster(root: Path, play: Callable[[Cluster], Awaitable[None]], voters: int = 3, **settings: str) -> None:
    """Run `play` on a cluster whose nodes have not been started yet. Running nodes are stopped at the end."""

    async def whole() -> None:
        cluster = Cluster(root, voters, {name.replace("_", "."): value for name, value in settings.items()})
        try:
            await play(cluster)
        finally:
            await cluster.close()

    asyncio.run(asyncio.wait_for(whole(), PATIENCE_S * 2))
