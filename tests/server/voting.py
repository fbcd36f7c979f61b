"""A quorum of real controllers that can change its voters: node 1 forms it, and the others join as observers
(KIP-853)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.config import BrokerConfig, parse_config
from kpybroker.raft.core.state import Role
from kpybroker.wire.rpc import add_raft_voter, remove_raft_voter
from tests.server.clustering import PATIENCE_S, QUICK, Cluster, free_ports

CLUSTER_ID = "a3B5YnJva2VyLXZvdGVycw"


class Quorum(Cluster):
    """Node 1 forms the cluster. Nodes that start later are observers until they are added as voters."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, voters=4, settings={"controller.quorum.request.timeout.ms": "1000"})
        self.own: dict[int, dict[str, str]] = {}
        """Settings of individual nodes, which override all others."""

    def config(self, node_id: int) -> BrokerConfig:
        listeners = f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{self.ports[node_id]}"
        servers = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        return parse_config(
            {
                "controller.quorum.bootstrap.servers": servers,
                "kpybroker.initial.controllers": "standalone" if node_id == 1 else "none",
                "kpybroker.cluster.id": CLUSTER_ID,
                "listeners": listeners,
                "node.id": str(node_id),
                "log.dirs": str(self.root / str(node_id)),
                **QUICK,
                **self.settings,
                **self.own.get(node_id, {}),
            }
        )

    def move(self, node_id: int) -> None:
        """Change the port of a node's controller, with effect from its next start."""
        self.ports[node_id] = free_ports(1)[0]

    async def ask(self, name: str, request: Any, version: int | None = None) -> Any:
        """Send a request as a client, to the first listener of a node."""
        node = next(iter(self.nodes.values()))
        host, _, port = node.bootstrap.rpartition(":")
        peer = await Peer.dial(node.broker.world.network, host, int(port))
        await peer.negotiate()
        try:
            return await peer.ask(name, request, version=version)
        finally:
            peer.close()

    async def add(self, node_id: int, version: int | None = None, **facts: Any) -> Any:
        """Send AddRaftVoter for a running node, and return the response."""
        me = self.nodes[node_id].broker.quorum.driver.identity
        assert me.listener is not None
        name, host, port = me.listener
        listener = add_raft_voter.Listener(name=name, host=host, port=port)
        said = {"cluster_id": CLUSTER_ID, "voter_id": node_id, "voter_directory_id": me.directory_id}
        request = add_raft_voter.Request(listeners=[listener], **{**said, **facts})
        return await self.ask("AddRaftVoter", request, version)

    async def remove(self, node_id: int, directory_id: bytes | None = None) -> Any:
        """Send RemoveRaftVoter, and return the response."""
        directory = directory_id or self.nodes[node_id].broker.quorum.driver.identity.directory_id
        request = remove_raft_voter.Request(cluster_id=CLUSTER_ID, voter_id=node_id, voter_directory_id=directory)
        return await self.ask("RemoveRaftVoter", request)

    async def until_caught_up(self, node_id: int) -> None:
        """Wait until the node has caught up with the leader."""
        me = self.nodes[node_id].broker.quorum.driver.identity
        leader = self.nodes[await self.leader()].broker.quorum

        def has_caught_up() -> bool:
            row = leader.describe().topics[0].partitions[0]
            return any(
                (each.replica_id, each.replica_directory_id) == (me.node_id, me.directory_id)
                and each.last_caught_up_timestamp >= 0
                for each in [*row.current_voters, *row.observers]
            )

        await self.until(has_caught_up, "it has caught up")

    async def of_three(self) -> None:
        """Start nodes 1 to 3, and make them voters."""
        await self.start(1)
        await self.start(2, 3)
        for node_id in (2, 3):
            await self.until_caught_up(node_id)
            told = await self.add(node_id)
            assert told.error_code == 0, told.error_message

    async def voting(self, *node_ids: int) -> None:
        """Wait until every running node knows that these nodes are the voters, and has the role of a leader or
        follower."""

        def agreed() -> bool:
            quorums = {node_id: node.broker.quorum for node_id, node in self.nodes.items()}
            return all(
                quorum.state.voters == node_ids
                and quorum.state.voters_end <= quorum.state.high_watermark
                and quorum.state.is_voter == (node_id in node_ids)
                and quorum.state.role in (Role.LEADER, Role.FOLLOWER)
                for node_id, quorum in quorums.items()
            )

        await self.until(agreed, f"all nodes know that the voters are {node_ids}")


def run_quorum(root: Path, play: Callable[[Quorum], Awaitable[None]]) -> None:
    """Run `play` on nodes that have not been started yet."""

    async def whole() -> None:
        quorum = Quorum(root)
        try:
            await play(quorum)
        finally:
            await quorum.close()

    asyncio.run(asyncio.wait_for(whole(), PATIENCE_S * 2))
