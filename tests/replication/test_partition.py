"""Partitions: records are committed when they are as durable as the settings require, and each waiter is settled
once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kpybroker.config import LogSettings
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.replication.partition.replica_rules import ReplicaRules
from kpybroker.world.real import RealWorld
from tests.replication.leading import NODE, NOW_MS, Host, Waiting, batch, leading

FSYNC = replace(LogSettings(), fsync_always=True)


@pytest.fixture
def world() -> Iterator[RealWorld]:
    made = RealWorld(3)
    yield made
    made.close()


def test_nothing_is_committed_before_the_flush(world: RealWorld, tmp_path: Path) -> None:
    hosting = Host(ReplicaRules(NODE))
    one = leading(world, tmp_path, host=hosting)
    produce, fetch = Waiting(), Waiting()
    one.fetches[fetch] = None
    for number in range(3):
        assert one.append(batch(b"a", b"b"), NOW_MS).base_offset == 2 * number
    one.when_committed(6, produce)
    assert (one.log.end, one.log.high_watermark, produce.settled) == (6, 0, 0)
    hosting.flush()
    assert (one.log.high_watermark, one.log.last_stable, one.log.written_end) == (6, 6, 6)
    assert (produce.settled, fetch.settled) == (1, 1), "one write for all appends of one event"
    hosting.flush()
    assert (produce.settled, fetch.settled) == (1, 1)


def test_with_fsync_nothing_is_committed_before_it_is_on_disk(world: RealWorld, tmp_path: Path) -> None:
    async def whole() -> None:
        hosting = Host(ReplicaRules(NODE))
        one = leading(world, tmp_path, FSYNC, host=hosting)
        waiters = [Waiting() for _ in range(20)]
        seen: list[tuple[int, int]] = []
        one.on_advance(lambda: seen.append((one.log.high_watermark, one.log.synced_end)))
        for number, waiter in enumerate(waiters):
            one.append(batch(b"x"), NOW_MS)
            hosting.flush()
            one.when_committed(number + 1, waiter)
            if number % 2 == 0:
                await asyncio.sleep(0)  # the next append is written during the sync of this one
        while one.log.high_watermark < 20:
            await asyncio.sleep(0.001)
        assert all(committed == synced for committed, synced in seen)
        assert one.log.synced_end == 20
        assert [waiter.settled for waiter in waiters] == [1] * 20

    asyncio.run(asyncio.wait_for(whole(), 20))


def test_with_fsync_batches_that_something_else_has_synced_are_committed(world: RealWorld, tmp_path: Path) -> None:
    """This happens when a replica moves to another directory, since its files are synced before they replace the old
    ones."""

    async def whole() -> None:
        hosting = Host(ReplicaRules(NODE))
        one = leading(world, tmp_path, FSYNC, host=hosting)
        for number in range(2):
            waiter = Waiting()
            one.append(batch(b"x"), NOW_MS)
            one.log.flush()
            await one.log.sync()
            assert one.log.synced_end == number + 1 > one.log.high_watermark
            hosting.flush()
            one.when_committed(number + 1, waiter)
            assert one.log.high_watermark == number + 1

    asyncio.run(asyncio.wait_for(whole(), 20))


def test_a_single_replica_that_leads_again_commits_its_log(world: RealWorld, tmp_path: Path) -> None:
    one = leading(world, tmp_path, epoch=4)
    one.append(batch(b"a"), NOW_MS)
    one.flush()
    one.log.drop_files()
    again = leading(world, tmp_path, epoch=6)
    assert (again.log.end, again.log.high_watermark) == (1, 1)
    assert (again.log.epoch_at(0), again.log.end_of_epoch(4), again.log.end_of_epoch(5)) == (4, (4, 1), (4, 1))
    assert again.log.end_of_epoch(7) == (-1, -1)


def test_epochs_are_fenced_both_ways(world: RealWorld, tmp_path: Path) -> None:
    one = leading(world, tmp_path, epoch=4)
    one.check_epoch(-1)
    one.check_epoch(4)
    for epoch, code in ((3, ErrorCode.FENCED_LEADER_EPOCH), (5, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        with pytest.raises(KafkaError) as refused:
            one.check_epoch(epoch)
        assert refused.value.code == code


def test_a_single_replica_is_always_enough(world: RealWorld, tmp_path: Path) -> None:
    """min.insync.replicas requires at most all replicas, as in Kafka."""
    one = leading(world, tmp_path)
    one.require_in_sync(1)
    one.require_in_sync(2)


def test_waiters_are_settled_when_the_partition_is_retired(world: RealWorld, tmp_path: Path) -> None:
    hosting = Host(ReplicaRules(NODE))
    one = leading(world, tmp_path, host=hosting)
    produce, fetch = Waiting(), Waiting()
    one.fetches[fetch] = None
    one.when_committed(99, produce)
    assert hosting.leads("t", 0) is one
    hosting.retire("t", 0)
    hosting.flush()
    assert (produce.settled, fetch.settled) == (1, 1)
    with pytest.raises(KafkaError):
        one.append(batch(b"late"), NOW_MS)
    with pytest.raises(KafkaError) as refused:
        hosting.leads("t", 0)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_leads_refuses_followers_and_offline_partitions(world: RealWorld, tmp_path: Path) -> None:
    hosting = Host(ReplicaRules(NODE))
    one = leading(world, tmp_path, host=hosting)
    one.leader_id = NODE + 1
    with pytest.raises(KafkaError) as refused:
        hosting.leads("t", 0)
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    one.leader_id = NODE
    one.fail("the disk is gone")
    with pytest.raises(KafkaError) as refused:
        hosting.leads("t", 0)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "the disk is gone" in refused.value.message
