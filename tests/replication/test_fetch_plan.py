"""A follower sends all its partitions to the leader, in Fetches with a bounded number of partitions."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kpybroker.client.dialer import Dialer
from kpybroker.config import LogSettings, parse_config
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import Image, PartitionImage
from kpybroker.replication.follower import fetch_session
from kpybroker.replication.follower.context import FetcherContext
from kpybroker.replication.follower.fetch_plan import WITHOUT_SESSION_MS, FetchPlan
from kpybroker.replication.partition.partition import Partition
from kpybroker.replication.partition.replica_rules import ReplicaRules
from kpybroker.storage.log.log import Log
from kpybroker.wire.rpc import fetch
from kpybroker.world.real import RealWorld
from tests.replication.leading import NOW_MS, Host

LEADER, FOLLOWER = 1, 2
TOPIC_ID = bytes(15) + b"\1"
COUNT, NAMED_MAX, WAIT_MS = 5, 2, 500


def following(world: RealWorld, directory: Path) -> tuple[FetchPlan, list[Partition]]:
    """A plan that follows COUNT empty partitions, and these partitions."""
    hosting, config = Host(ReplicaRules(FOLLOWER, now_ms=lambda: NOW_MS)), parse_config({})
    context = FetcherContext(
        Dialer(world.network), FOLLOWER, lambda: config, lambda: 1, Image, hosting.following_throttle
    )
    plan = FetchPlan(context, lambda: 0.0)
    partitions = []
    for index in range(COUNT):
        storage = Log.open(world, str(directory / f"t-{index}"), "t", index, LogSettings(), clean=False)
        partition = hosting.host("t", TOPIC_ID, index, storage)
        partition.become(PartitionImage(LEADER, 0, 0, (LEADER, FOLLOWER), (LEADER, FOLLOWER)))
        plan.follow(partition)
        partitions.append(partition)
    return plan, partitions


def named(request: fetch.Request) -> list[int]:
    return [partition.partition for topic in request.topics for partition in topic.partitions]


@pytest.mark.parametrize("session_id", [9, 0], ids=["in a session", "without one"])
def test_partitions_without_room_in_one_fetch_are_in_the_next(
    session_id: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_session, "NAMED_MAX", NAMED_MAX)
    plan, _ = following(RealWorld(1), tmp_path)
    told: list[list[int]] = []
    for number in range(3):
        assert plan.look()
        request = plan.request(WAIT_MS)
        told.append(named(request))
        if not session_id:
            assert request.max_wait_ms == (WITHOUT_SESSION_MS if number else 0), (
                "without a session, the next Fetch does not follow at once"
            )
        left = set(range(COUNT)) - {index for some in told for index in some}
        if session_id:
            assert request.max_wait_ms == (0 if left else WAIT_MS), (
                "the leader does not park a Fetch if partitions are left"
            )
        for index in left:
            assert plan.is_left((TOPIC_ID, index))
            if not session_id:
                assert plan.asked((TOPIC_ID, index)) is None, "the partition is not in this Fetch"
        plan.session.answered(session_id)
    assert told[:2] == [[0, 1], [2, 3]]
    assert 4 in told[2]
    assert all(len(some) <= NAMED_MAX for some in told)


@pytest.mark.parametrize("gone", range(COUNT))
def test_a_partition_may_be_removed_between_look_and_request(
    gone: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_session, "NAMED_MAX", NAMED_MAX)
    plan, partitions = following(RealWorld(1), tmp_path)
    assert plan.look()
    plan.leave(partitions[gone])
    told = named(plan.request(WAIT_MS))
    while plan.look() and len(told) < COUNT - 1:
        told += named(plan.request(WAIT_MS))
    assert sorted(told) == sorted(set(range(COUNT)) - {gone})


@pytest.mark.parametrize("code", [ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE])
def test_records_that_cannot_be_used_are_logged_once_and_delay_only_their_partition(
    code: ErrorCode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan, _ = following(RealWorld(1), tmp_path)
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        plan.delay((TOPIC_ID, 1), KafkaError(code, "message format 1"))
        assert plan.look()
        assert sorted(named(plan.request(WAIT_MS))) == [0, 2, 3, 4]
        plan.session.answered(0)
    plan.delay((TOPIC_ID, 2), KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    [told] = caplog.messages
    assert "t-1" in told
    assert "message format 1" in told
