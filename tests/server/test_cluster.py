"""A cluster of three nodes on real sockets elects a leader, replicates metadata, and continues if one node fails."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kpybroker.controller import commands
from kpybroker.storage.dirs.directory import METADATA_DIRECTORY
from kpybroker.storage.dirs.formatting import NEW_VOTER
from kpybroker.wire.records.batch import encode_batch, split
from kpybroker.wire.stored import metadata
from tests.server.clustering import Cluster, run_cluster

pytestmark = pytest.mark.slow


async def create(cluster: Cluster, leader: int, name: str) -> None:
    """Create a topic on the active controller."""
    wanted = commands.NewTopic(name, num_partitions=1, replication_factor=1)
    results = await cluster.nodes[leader].broker.controller.ask(commands.CreateTopics((wanted,)), 10_000)
    assert [result.error_code for result in results] == [0], results


async def everywhere(cluster: Cluster, name: str) -> None:
    await cluster.until(
        lambda: all(name in node.broker.metadata.image.topics for node in cluster.nodes.values()),
        f"topic {name} is known everywhere",
    )


def test_three_nodes_elect_a_leader_and_replicate(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        leader = await cluster.leader()
        await create(cluster, leader, "a")
        await everywhere(cluster, "a")
        images = [node.broker.metadata.image for node in cluster.nodes.values()]
        assert images[0] == images[1] == images[2]
        assert len({node.broker.storage.cluster_id for node in cluster.nodes.values()}) == 1

    run_cluster(tmp_path, play)


def test_a_voter_that_lost_its_directory_votes_again_once_it_has_caught_up(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        def new_voters() -> list[int]:
            return [node_id for node_id in (1, 2, 3) if (tmp_path / str(node_id) / NEW_VOTER).exists()]

        await cluster.start(1, 2, 3)
        await cluster.until(lambda: not new_voters(), "all have caught up with the one they elected")
        leader = await cluster.leader()
        gone = leader % 3 + 1
        await cluster.stop(gone)
        shutil.rmtree(tmp_path / str(gone))
        cluster.settings["kpybroker.cluster.id"] = cluster.nodes[leader].broker.storage.cluster_id
        await cluster.start(gone)
        await cluster.until(lambda: not new_voters(), "it has caught up")
        await cluster.stop(leader)
        assert await cluster.leader() != leader

    run_cluster(tmp_path, play)


def test_another_node_leads_when_the_leader_stops_and_the_old_one_follows(tmp_path: Path) -> None:
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
        assert {"before", "meanwhile"} <= set(cluster.nodes[third].broker.metadata.image.topics)

    run_cluster(tmp_path, play)


def test_a_broker_that_does_not_vote_follows(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3, 7)
        leader = await cluster.leader()
        await create(cluster, leader, "a")
        await everywhere(cluster, "a")
        assert cluster.nodes[7].broker.quorum.leader_id == leader
        told = cluster.nodes[leader].broker.quorum.describe()
        row = told.topics[0].partitions[0]
        assert [voter.replica_id for voter in row.current_voters] == [1, 2, 3]
        assert [observer.replica_id for observer in row.observers] == [7]

    run_cluster(tmp_path, play)


SMALL_SNAPSHOTS = {
    "metadata_log_max_record_bytes_between_snapshots": "500",
    "metadata_max_retention_bytes": "2000",
}


def metadata_of(cluster: Cluster, node_id: int) -> Path:
    return cluster.root / str(node_id) / METADATA_DIRECTORY


def test_a_node_that_was_away_too_long_gets_a_snapshot(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        away = 3
        await cluster.stop(away)
        leader = await cluster.leader()
        for number in range(40):
            await create(cluster, leader, f"t{number}")
        quorum = cluster.nodes[leader].broker.quorum
        await cluster.until(lambda: quorum.log.start > 0, "the beginning of the log is gone")
        await cluster.start(away)
        follower = cluster.nodes[away].broker
        await cluster.until(lambda: follower.quorum.committed == quorum.committed, "the snapshot is installed")
        assert follower.metadata.image == quorum.image
        assert follower.quorum.log.start > 0
        assert list(metadata_of(cluster, away).glob("*.checkpoint"))
        await create(cluster, await cluster.leader(), "later")
        await everywhere(cluster, "later")

    run_cluster(tmp_path, play, **SMALL_SNAPSHOTS)


def test_uncommitted_records_of_a_dead_leader_are_truncated(tmp_path: Path) -> None:
    """When a node returns, it removes the uncommitted records that a later leader does not have."""

    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        first = await cluster.leader()
        await create(cluster, first, "before")
        await cluster.stop(first)
        lost = metadata.TopicRecord(name="lost", topic_id=b"l" * 16)
        rows = [(None, metadata.frame_record(lost))]
        log_file = metadata_of(cluster, first) / "00000000000000000000.log"
        end = sum(batch.record_count for batch in split(log_file.read_bytes()))
        log_file.write_bytes(
            log_file.read_bytes() + encode_batch(rows, base_offset=end, timestamp_ms=1, leader_epoch=1)
        )
        second = await cluster.leader()
        await create(cluster, second, "meanwhile")
        await cluster.start(first)
        await everywhere(cluster, "meanwhile")
        quorum = cluster.nodes[first].broker.quorum
        assert quorum.log.epoch_at(end) == cluster.nodes[second].broker.quorum.log.epoch_at(end) > 1
        assert "lost" not in quorum.image.topics

    run_cluster(tmp_path, play)


def test_all_may_stop_and_come_back(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        await create(cluster, await cluster.leader(), "a")
        epoch = cluster.nodes[1].broker.quorum.epoch
        await cluster.close()
        await cluster.start(1, 2, 3)
        leader = await cluster.leader()
        assert cluster.nodes[leader].broker.quorum.epoch > epoch
        await everywhere(cluster, "a")

    run_cluster(tmp_path, play)
