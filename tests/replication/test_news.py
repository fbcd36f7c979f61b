"""A follower's Fetch checks only partitions with news, and the follower still receives all changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kpybroker.call import Call, Reply
from kpybroker.config import LogSettings, parse_config
from kpybroker.metadata.image import PartitionImage
from kpybroker.quotas.clients import ClientQuotas
from kpybroker.replication.follower.fetch_session import FetchSession, PartitionFetch
from kpybroker.replication.follower.follower_log import FetchPosition
from kpybroker.replication.partition.partition import Partition
from kpybroker.replication.partition.replica_rules import ReplicaRules
from kpybroker.replication.partition.sessions import FetchSessions
from kpybroker.serving.fetch.replica import COUNT_ALL_MS, fetch_replica
from kpybroker.storage.log.log import Log
from kpybroker.topics import TopicIdPartition
from kpybroker.wire.records.batch import split
from kpybroker.wire.rpc import fetch
from kpybroker.world.real import RealWorld
from tests.replication.leading import NOW_MS, Host, batch

LEADER, FOLLOWER = 1, 2
TOPIC_ID = bytes(15) + b"\1"
COUNT = 20
CALL = Call(1, 17, "follower", "127.0.0.1", 1)
WAIT_MS = 60_000


class Leader:
    """A broker that leads partitions with one follower. It has only the parts that a Fetch needs."""

    node_id = LEADER
    config = parse_config({})

    def __init__(self, world: RealWorld, directory: Path) -> None:
        self.now_ms = 0
        rules = ReplicaRules(LEADER, now_ms=lambda: self.now_ms)
        self.host = Host(rules)
        self.hosting = self.host.hosting
        self.sessions = FetchSessions(Random(1), 10, rules.now_ms)
        self.quotas = ClientQuotas(self.config, rules.now_ms)
        self.partitions = [self._lead(world, directory / f"t-{index}", index) for index in range(COUNT)]

    def _lead(self, world: RealWorld, directory: Path, index: int) -> Partition:
        storage = Log.open(world, str(directory), "t", index, LogSettings(), clean=False)
        partition = self.hosting.host("t", TOPIC_ID, index, storage)
        partition.become(PartitionImage(LEADER, 0, 0, (LEADER, FOLLOWER), (LEADER, FOLLOWER)))
        return partition

    @property
    def metadata(self) -> Leader:
        return self

    replication = metadata

    def topic_name(self, topic_id: bytes) -> str | None:
        return "t" if topic_id == TOPIC_ID else None

    def leader_of(self, name: str, index: int, listener: str) -> None:
        return None

    def write(self, index: int) -> None:
        self.partitions[index].append(batch(b"x"), NOW_MS)
        self.host.flush()

    @property
    def left(self) -> int:
        """The number of partitions that the next Fetch checks, in addition to those that it contains."""
        (session,) = self.sessions
        assert session.news is not None
        return len(session.news.wants)


class Follower:
    """Fetches in a session, and keeps the ends and high watermarks of the responses."""

    def __init__(self) -> None:
        self.session = FetchSession()
        self.ends = [0] * COUNT
        self.high_watermarks = [0] * COUNT

    def ask(self, leader: Leader, wait_ms: int = 0, max_bytes: int = 10_000) -> fetch.Response | Reply:
        wanted: dict[TopicIdPartition, PartitionFetch | None] = {
            (TOPIC_ID, index): PartitionFetch(FetchPosition(0, end, 0 if end else -1), 0, 1000)
            for index, end in enumerate(self.ends)
        }
        changed, _, _ = self.session.news(wanted)
        rows = [
            fetch.FetchPartition(
                partition=index,
                current_leader_epoch=0,
                fetch_offset=asked.place.offset,
                last_fetched_epoch=asked.place.last_epoch,
                log_start_offset=0,
                partition_max_bytes=asked.max_bytes,
            )
            for (_, index), asked in changed.items()
        ]
        request = fetch.Request(
            replica_state=fetch.ReplicaState(replica_id=FOLLOWER, replica_epoch=1),
            session_id=self.session.id,
            session_epoch=self.session.epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=[fetch.FetchTopic(topic_id=TOPIC_ID, partitions=rows)] if rows else [],
        )
        told: Any = fetch_replica(leader, CALL, request, FOLLOWER)  # type: ignore[arg-type]
        leader.host.flush()
        return told  # type: ignore[no-any-return]

    def take(self, told: Any) -> None:
        assert told.error_code == 0
        self.session.answered(told.session_id)
        for topic in told.responses:
            for row in topic.partitions:
                assert row.error_code == 0
                for one in split(row.records) if row.records else []:
                    assert one.base_offset == self.ends[row.partition_index]
                    self.ends[row.partition_index] = one.next_offset
                self.high_watermarks[row.partition_index] = row.high_watermark


@pytest.fixture
def world() -> Iterator[RealWorld]:
    made = RealWorld(3)
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(5))
def test_a_follower_learns_all_records_and_high_watermarks(world: RealWorld, tmp_path: Path, seed: int) -> None:
    random, leader, follower = Random(seed), Leader(world, tmp_path), Follower()
    for _ in range(60):
        leader.now_ms += random.choice((0, 1, COUNT_ALL_MS))
        for _ in range(random.randrange(4)):
            leader.write(random.randrange(COUNT))
        follower.take(follower.ask(leader, max_bytes=random.choice((1, 10_000))))
    leader.now_ms += 1  # it is too early to check all partitions, so the news must be sufficient
    for _ in range(COUNT):
        follower.take(follower.ask(leader, max_bytes=200))
    assert follower.ends == [partition.log.end for partition in leader.partitions]
    assert follower.high_watermarks == follower.ends
    assert all(partition.log.high_watermark == partition.log.end for partition in leader.partitions)
    assert leader.left == 0


def test_an_append_completes_a_parked_fetch(world: RealWorld, tmp_path: Path) -> None:
    async def scene() -> None:
        leader, follower = Leader(world, tmp_path), Follower()
        follower.take(follower.ask(leader))
        for index in (3, 7, 3):
            parked = follower.ask(leader, WAIT_MS)
            assert isinstance(parked, Reply)
            assert leader.left == 0
            assert not parked.done
            leader.write(index)
            assert parked.done
            follower.take(parked.response)
            assert follower.ends[index] == leader.partitions[index].log.end
            follower.take(follower.ask(leader))
            assert follower.high_watermarks[index] == follower.ends[index]

    asyncio.run(scene())


def test_an_abandoned_fetch_is_not_settled(world: RealWorld, tmp_path: Path) -> None:
    async def scene() -> None:
        leader, follower = Leader(world, tmp_path), Follower()
        follower.take(follower.ask(leader))
        parked = follower.ask(leader, WAIT_MS)
        assert isinstance(parked, Reply)
        parked.abandon()
        leader.write(3)
        assert parked.response is None
        assert leader.left == 1

    asyncio.run(scene())


def test_an_idle_follower_counts_as_caught_up(world: RealWorld, tmp_path: Path) -> None:
    leader, follower = Leader(world, tmp_path), Follower()
    lag_ms = leader.hosting.rules.lag_max_ms
    while leader.now_ms < 3 * lag_ms:
        follower.take(follower.ask(leader))
        leader.now_ms += COUNT_ALL_MS
    leader.write(3)
    proposed = leader.host.proposed
    for partition in leader.partitions:
        partition.drop_lagging()
    assert not proposed
    leader.now_ms += lag_ms
    leader.partitions[3].drop_lagging()
    assert proposed == [leader.partitions[3]]


def test_a_forgotten_partition_has_no_news(world: RealWorld, tmp_path: Path) -> None:
    leader, follower = Leader(world, tmp_path), Follower()
    follower.take(follower.ask(leader))
    request = fetch.Request(
        replica_state=fetch.ReplicaState(replica_id=FOLLOWER, replica_epoch=1),
        session_id=follower.session.id,
        session_epoch=follower.session.epoch,
        forgotten_topics_data=[fetch.ForgottenTopic(topic_id=TOPIC_ID, partitions=[3])],
    )
    told: Any = fetch_replica(leader, CALL, request, FOLLOWER)  # type: ignore[arg-type]
    follower.take(told)
    leader.write(3)
    leader.write(4)
    assert leader.left == 1
