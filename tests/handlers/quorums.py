"""One of three voters, for tests. The other two do not run; the test sends their requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.config import parse_config
from kpybroker.server.node import Node
from kpybroker.storage.dirs.formatting import METADATA_DIRECTORY
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.rpc import begin_quorum_epoch, end_quorum_epoch, vote
from kpybroker.world.real import RealWorld
from tests.server.clustering import free_ports

PATIENT = {
    "controller.quorum.election.timeout.ms": "600000",
    "controller.quorum.fetch.timeout.ms": "600000",
    "process.roles": "controller",
}
"""Timeouts that are so long that they never expire during a test."""


class Voter:
    """Node 1, and a connection to its controller listener."""

    def __init__(self, node: Node, peer: Peer, directory: Path) -> None:
        self.node = node
        self.peer = peer
        self.directory = directory
        self.cluster_id = node.broker.storage.cluster_id

    @property
    def stored(self) -> Any:
        """The content of quorum-state on disk."""
        return json.loads((self.directory / METADATA_DIRECTORY / "quorum-state").read_text())

    async def vote(self, epoch: int, candidate: int = 2, version: int = 2, **facts: Any) -> vote.PartitionDataReply:
        """Send the Vote of a candidate. Returns the response."""
        row = vote.PartitionData(replica_epoch=epoch, replica_id=candidate, **facts)
        topics = [vote.TopicData(topic_name=METADATA_TOPIC, partitions=[row])]
        request = vote.Request(cluster_id=self.cluster_id, voter_id=1, topics=topics)
        told = await self.peer.ask("Vote", request, version=version)
        answer: vote.PartitionDataReply = told.topics[0].partitions[0]
        return answer

    async def begin(
        self, epoch: int, leader: int = 2, version: int = 1, listens: tuple[tuple[str, str, int], ...] = ()
    ) -> begin_quorum_epoch.PartitionDataReply:
        """Send the BeginQuorumEpoch of a new leader with its listeners. Returns the response."""
        row = begin_quorum_epoch.PartitionData(leader_id=leader, leader_epoch=epoch)
        topics = [begin_quorum_epoch.TopicData(topic_name=METADATA_TOPIC, partitions=[row])]
        endpoints = [begin_quorum_epoch.LeaderEndpoint(name=name, host=host, port=port) for name, host, port in listens]
        request = begin_quorum_epoch.Request(
            cluster_id=self.cluster_id, voter_id=1, topics=topics, leader_endpoints=endpoints
        )
        told = await self.peer.ask("BeginQuorumEpoch", request, version=version)
        answer: begin_quorum_epoch.PartitionDataReply = told.topics[0].partitions[0]
        return answer

    async def end(self, epoch: int, leader: int = 2, version: int = 1) -> end_quorum_epoch.PartitionDataReply:
        """Send the EndQuorumEpoch of a leader that resigns. Returns the response."""
        best = [end_quorum_epoch.ReplicaInfo(candidate_id=node) for node in (3, 1)]
        row = end_quorum_epoch.PartitionData(
            leader_id=leader, leader_epoch=epoch, preferred_successors=[3, 1], preferred_candidates=best
        )
        topics = [end_quorum_epoch.TopicData(topic_name=METADATA_TOPIC, partitions=[row])]
        told = await self.peer.ask(
            "EndQuorumEpoch", end_quorum_epoch.Request(cluster_id=self.cluster_id, topics=topics), version=version
        )
        answer: end_quorum_epoch.PartitionDataReply = told.topics[0].partitions[0]
        return answer


def with_voter(directory: Path, play: Callable[[Voter], Awaitable[None]]) -> None:
    """Run `play` with a voter that has just started or restarted."""

    async def whole() -> None:
        ports = free_ports(3)
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(ports, 1))
        world = RealWorld(seed=1)
        listeners = f"CONTROLLER://127.0.0.1:{ports[0]}"
        own = {"log.dirs": str(directory), "listeners": listeners, "controller.quorum.voters": voters}
        node = await Node.start(world, parse_config({**PATIENT, **own, "node.id": "1"}))
        try:
            peer = await Peer.dial(world.network, "127.0.0.1", ports[0])
            await peer.negotiate()
            await play(Voter(node, peer, directory))
            peer.close()
        finally:
            await node.stop()
            world.close()

    asyncio.run(asyncio.wait_for(whole(), 60))
