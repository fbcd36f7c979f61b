"""Three nodes on real sockets: they elect, replicate their metadata, and go on without one of them."""

from __future__ import annotations

from pathlib import Path

from kpybroker.controller import commands
from tests.server.clustering import Cluster, run_cluster


async def create(cluster: Cluster, leader: int, name: str) -> None:
    """Create a topic on the active controller."""
    wanted = commands.NewTopic(name, num_partitions=1, replication_factor=1)
    results = await cluster.nodes[leader].broker.controller.ask(commands.CreateTopics((wanted,)), 10_000)
    assert [result.error_code for result in results] == [0], results


async def everywhere(cluster: Cluster, name: str) -> None:
    await cluster.until(
        lambda: all(name in node.broker.image.topics for node in cluster.nodes.values()),
        f"topic {name} is known everywhere",
    )


def test_three_nodes_elect_one_and_replicate(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        leader = await cluster.leader()
        await create(cluster, leader, "a")
        await everywhere(cluster, "a")
        images = [node.broker.image for node in cluster.nodes.values()]
        assert images[0] == images[1] == images[2]
        assert len({node.broker.cluster_id for node in cluster.nodes.values()}) == 1

    run_cluster(tmp_path, play)


def test_another_leads_when_the_leader_stops_and_it_follows_when_it_is_back(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        first = await cluster.leader()
        await create(cluster, first, "before")
        await cluster.stop(first)
        second = await cluster.leader()
        assert second != first
        await create(cluster, second, "meanwhile")
        await cluster.start(first)
        await everywhere(cluster, "meanwhile")
        assert await cluster.leader() == second
        third = next(node for node in cluster.nodes if node not in (first, second))
        await cluster.stop(second)
        await cluster.leader()
        assert {"before", "meanwhile"} <= set(cluster.nodes[third].broker.image.topics)

    run_cluster(tmp_path, play)


def test_a_broker_that_does_not_vote_follows(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3, 7)
        leader = await cluster.leader()
        await create(cluster, leader, "a")
        await everywhere(cluster, "a")
        assert cluster.nodes[7].broker.quorum.leader_id == leader
        told = cluster.nodes[leader].broker.quorum.answering.describe()
        row = told.topics[0].partitions[0]
        assert [voter.replica_id for voter in row.current_voters] == [1, 2, 3]
        assert [observer.replica_id for observer in row.observers] == [7]

    run_cluster(tmp_path, play)
