"""The loss of data: lost directories, unclean elections, and recovery from the other replicas."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kpybroker.errors import ErrorCode
from kpybroker.metadata.chronicle import CHRONICLE
from kpybroker.wire.rpc import elect_leaders
from tests.replication.virtual import TOPIC, VirtualCluster, play

UNCLEAN = 1
APART = (4, 5, 6)
"""The controllers, in tests where the nodes that lose data would be a majority of three voters."""


async def lose(cluster: VirtualCluster, node_id: int) -> None:
    """Stop a node and wipe its disk. Returns when the other nodes know that it has stopped."""
    cluster.machines[node_id].lose_directory()
    await fenced(cluster, node_id)


async def fenced(cluster: VirtualCluster, node_id: int) -> None:
    await cluster.until(
        lambda: all(broker.metadata.image.brokers[node_id].fenced for broker in cluster.brokers.values()),
        "it is fenced",
    )


async def live(cluster: VirtualCluster, *node_ids: int) -> None:
    await cluster.start(*node_ids)
    await cluster.until(
        lambda: all(
            not broker.metadata.image.brokers[i].fenced for broker in cluster.brokers.values() for i in node_ids
        ),
        "they are live",
    )


async def elect(cluster: VirtualCluster, kind: int, topic: str = "t") -> ErrorCode:
    named = elect_leaders.TopicPartitions(topic=topic, partitions=[0])
    told = await cluster.ask("ElectLeaders", elect_leaders.Request(election_type=kind, topic_partitions=[named]))
    rows = told.replica_election_results
    return ErrorCode(rows[0].partition_result[0].error_code if rows else told.error_code)


def test_a_lost_directory_is_refilled_from_the_other_replicas() -> None:
    """The directories of a leader, a follower and the active controller are lost in turn; no record is lost."""

    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2, 3), (2, 3, 1), (3, 1, 2), min_insync_replicas="2")
        sent: list[list[bytes]] = [[], [], []]
        for round_ in range(6):
            for index in range(3):
                sent[index].append(b"%d" % round_)
                await cluster.put(sent[index][-1], index=index)
            node_id = round_ % 3 + 1
            had = cluster.broker(node_id).storage.directories[0].directory_id
            await lose(cluster, node_id)
            for index in range(3):
                sent[index].append(b"without %d" % node_id)
                await cluster.put(sent[index][-1], index=index)
            await live(cluster, node_id)
            for index in range(3):
                await cluster.until(lambda at=index: len(cluster.image(index=at).isr) == 3, "in sync again")  # type: ignore[misc]
                place = cluster.image(index=index).replicas.index(node_id)
                assert cluster.image(index=index).directories[place] not in (had, bytes(16))
        for index in range(3):
            assert await cluster.values(index=index) == sent[index]

    play(scene)


def test_a_broker_that_lost_the_last_complete_log_does_not_lead_with_an_empty_one() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2))
        await cluster.put(b"both have it")
        cluster.machines[2].kill()
        await fenced(cluster, 2)
        await cluster.put(b"one has it")
        assert tuple(cluster.image().isr) == (1,)
        await lose(cluster, 1)
        await live(cluster, 2)
        await live(cluster, 1)
        await asyncio.sleep(5)
        now = cluster.image()
        assert (now.leader, tuple(now.isr)) == (-1, ()), "neither the empty nor the incomplete replica leads"
        assert await elect(cluster, UNCLEAN) == ErrorCode.NONE, (
            "an unclean election that an operator requests is possible"
        )
        await cluster.until(lambda: len(cluster.image().isr) == 2, "both are in sync")

    play(scene, 6, voters=APART)


def test_a_lost_single_replica_stays_offline_until_an_unclean_election() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((3,))
        await cluster.put(b"here only")
        await lose(cluster, 3)
        await live(cluster, 3)
        await asyncio.sleep(5)
        assert (cluster.image().leader, tuple(cluster.image().isr)) == (-1, ())
        assert await elect(cluster, UNCLEAN) == ErrorCode.NONE
        await cluster.until(lambda: cluster.image().leader == 3, "it leads")
        assert await cluster.values() == []
        await cluster.put(b"new")

    play(scene)


def test_an_unclean_leader_makes_the_others_truncate(caplog: pytest.LogCaptureFixture) -> None:
    """An operator requests one unclean election, and the topic allows another one. Afterwards the logs agree, and grow.
    Truncations are logged, even if a replica has not stored its high watermark because it was killed."""
    caplog.set_level(logging.INFO, CHRONICLE)

    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2, 3))
        await cluster.put(b"all have it")
        await cluster.until(lambda: all(cluster.replica(i).log.high_watermark == 1 for i in (1, 2, 3)), "all know")
        for node_id in (3, 2):
            cluster.machines[node_id].kill()
            await fenced(cluster, node_id)
        await cluster.put(b"one has it", b"and this")
        cluster.machines[1].kill()
        assert cluster.machines[1].process is None
        await cluster.start(2, 3)
        await cluster.until(lambda: cluster.image().leader == -1, "nobody leads")
        await asyncio.sleep(3)
        assert cluster.image().leader == -1, "an incomplete replica waits for a complete one"
        assert await elect(cluster, UNCLEAN) == ErrorCode.NONE
        await cluster.until(lambda: cluster.image().leader in (2, 3), "one of the live replicas leads")
        await cluster.put(b"went on")
        await live(cluster, 1)
        await cluster.until(lambda: len(cluster.image().isr) == 3, "all are in sync")
        await cluster.until(
            lambda: all(cluster.replica(i).log.end == 2 for i in (1, 2, 3)), "all have the same records"
        )
        assert await cluster.values() == [b"all have it", b"went on"]
        logs = {bytes(cluster.replica(i).log.read(0, 1 << 20, upper=2, min_one=True) or b"") for i in (1, 2, 3)}
        assert len(logs) == 1

    play(scene, 6, voters=APART)
    assert [line for line in caplog.messages if " is truncated from " in line] == [
        "t-0 is truncated from 3 to 1, because it diverges from the log of its leader"
    ]


def test_a_topic_with_unclean_elections_waits_for_no_replica() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2, 3), unclean_leader_election_enable="true")
        await cluster.put(b"all have it")
        for node_id in (3, 2):
            cluster.machines[node_id].kill()
            await fenced(cluster, node_id)
        await cluster.put(b"one has it")
        cluster.machines[1].lose_directory()
        await cluster.start(2, 3)
        await cluster.put(b"went on")
        await live(cluster, 1)
        await cluster.until(lambda: len(cluster.image().isr) == 3, "all are in sync")
        assert await cluster.values() == [b"all have it", b"went on"]
        await cluster.configure(TOPIC, "t", unclean_leader_election_enable=None)

    play(scene, 6, voters=APART)


def test_impossible_reassignments_and_changes_of_the_replication_factor() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2))
        await cluster.put(b"x")
        row = await cluster.reassign(1, 9)
        assert row.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert "broker 9, but no such broker is registered" in row.error_message
        assert (await cluster.reassign(1, 1)).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert (await cluster.reassign()).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert (await cluster.reassign(1, topic="none")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await cluster.put(b"served on")
        for wanted in ((1, 2, 3), (3,), (2, 3), (2, 1, 3), (1,)):
            assert (await cluster.reassign(*wanted)).error_code == 0
            await cluster.until(lambda: not cluster.image().adding_replicas, f"moves to {wanted}")
            await cluster.until(lambda to=wanted: tuple(cluster.image().replicas) == to, f"moved to {wanted}")  # type: ignore[misc]
            assert set(cluster.image().isr) == set(wanted)
            await cluster.put(b"at %d" % len(wanted))
            for node_id in {1, 2, 3} - set(wanted):
                await cluster.until(
                    lambda at=node_id: cluster.broker(at).replication.hosting.find("t", 0) is None, "left"
                )  # type: ignore[misc]
        assert len(await cluster.values()) == 7

    play(scene)
