"""Tests Vote over a socket. A granted vote is on disk, and is kept after a restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kpybroker.errors import ConfigError, ErrorCode
from kpybroker.storage.dirs.formatting import METADATA_DIRECTORY, NEW_VOTER
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.rpc import vote
from tests.handlers.quorums import Voter, with_voter


@pytest.mark.parametrize("version", [0, 1, 2])
def test_one_candidate_gets_the_vote_and_the_vote_is_stored(tmp_path: Path, version: int) -> None:
    async def play(voter: Voter) -> None:
        first = await voter.vote(3, candidate=2, version=version)
        assert (first.error_code, first.vote_granted, first.leader_id, first.leader_epoch) == (0, True, -1, 3)
        assert (voter.stored["leaderEpoch"], voter.stored["votedId"], voter.stored["data_version"]) == (3, 2, 0)
        assert not (await voter.vote(3, candidate=3, version=version)).vote_granted
        assert (await voter.vote(3, candidate=2, version=version)).vote_granted
        assert (await voter.vote(2, candidate=2, version=version)).error_code == ErrorCode.FENCED_LEADER_EPOCH

    with_voter(tmp_path / "data", play)


def test_a_vote_survives_a_restart(tmp_path: Path) -> None:
    async def play(voter: Voter) -> None:
        assert (await voter.vote(3, candidate=2)).vote_granted

    async def again(voter: Voter) -> None:
        assert not (await voter.vote(3, candidate=3)).vote_granted
        assert (await voter.vote(3, candidate=2)).vote_granted

    with_voter(tmp_path / "data", play)
    text = (tmp_path / "data" / "meta.properties").read_text()
    cluster_id = next(line for line in text.splitlines() if line.startswith("cluster.id="))
    with_voter(tmp_path / "data", again)
    assert cluster_id in (tmp_path / "data" / "meta.properties").read_text()


def test_a_vote_that_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    async def play(voter: Voter) -> None:
        (voter.directory / METADATA_DIRECTORY / "quorum-state.tmp").mkdir()
        row = vote.PartitionData(replica_epoch=3, replica_id=2)
        topics = [vote.TopicData(topic_name=METADATA_TOPIC, partitions=[row])]
        request = vote.Request(cluster_id=voter.cluster_id, voter_id=1, topics=topics)
        told = await voter.peer.ask("Vote", request)
        assert (told.error_code, told.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
        assert "quorum-state" in await voter.node.failed
        with pytest.raises(FileNotFoundError):
            voter.stored  # noqa: B018 - it is read

    with_voter(tmp_path / "data", play)


def test_a_pre_vote_changes_nothing(tmp_path: Path) -> None:
    async def play(voter: Voter) -> None:
        told = await voter.vote(0, candidate=2, pre_vote=True)
        assert (told.vote_granted, told.leader_epoch) == (True, 0)
        assert (await voter.vote(0, candidate=3, pre_vote=True)).vote_granted
        assert voter.node.broker.quorum.epoch == 0

    with_voter(tmp_path / "data", play)


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        ({"candidate": 9}, ErrorCode.NONE),
        ({"last_offset_epoch": 5}, ErrorCode.INVALID_REQUEST),
        ({"last_offset": -1}, ErrorCode.INVALID_REQUEST),
    ],
    ids=["of no voter", "with a log from a later epoch", "with a log that cannot be"],
)
def test_a_candidate_that_cannot_be_elected_gets_no_vote(
    tmp_path: Path, facts: dict[str, int], error: ErrorCode
) -> None:
    async def play(voter: Voter) -> None:
        told = await voter.vote(5, **facts)
        assert (told.vote_granted, told.error_code) == (False, error)
        assert voter.node.broker.quorum.epoch == 0

    with_voter(tmp_path / "data", play)


def test_large_steps_do_not_exhaust_the_epochs(tmp_path: Path) -> None:
    """Large steps reach at most half of all epochs. Elections, which increment the epoch by one, still work after
    that."""
    half, last = 2**30, 2**31 - 1

    async def near(voter: Voter) -> None:
        assert (await voter.vote(half - 5)).error_code == 0
        assert (await voter.vote(half + 1)).error_code == ErrorCode.INVALID_REQUEST
        assert (await voter.vote(half, candidate=3)).error_code == 0

    async def beyond(voter: Voter) -> None:
        for far in (half + 3, half + 1000, last):
            assert (await voter.vote(far)).error_code == ErrorCode.INVALID_REQUEST
            assert (await voter.vote(far, pre_vote=True)).error_code == ErrorCode.INVALID_REQUEST
            assert (await voter.begin(far)).error_code == ErrorCode.INVALID_REQUEST
            assert (await voter.end(far)).error_code == ErrorCode.INVALID_REQUEST
        assert voter.stored["leaderEpoch"] == half
        assert (await voter.vote(half + 1)).vote_granted
        assert (await voter.begin(half + 2)).error_code == 0
        assert voter.stored["leaderEpoch"] == half + 2

    async def at_the_end(voter: Voter) -> None:
        assert (await voter.vote(last)).vote_granted
        assert voter.stored["leaderEpoch"] == last

    async def nothing(voter: Voter) -> None:
        pass

    directory = tmp_path / "data"
    with_voter(directory, nothing)
    stands_at(directory, half - 1000)
    with_voter(directory, near)
    with_voter(directory, beyond)
    stands_at(directory, last - 1)
    with_voter(directory, at_the_end)
    stands_at(directory, last + 1)
    with pytest.raises(ConfigError, match="leaderEpoch 2147483648"):
        with_voter(directory, nothing)


def stands_at(directory: Path, epoch: int) -> None:
    path = directory / METADATA_DIRECTORY / "quorum-state"
    told = json.loads(path.read_text()) if path.exists() else {"data_version": 0}
    path.write_text(json.dumps({**told, "leaderEpoch": epoch, "leaderId": -1, "votedId": -1}))


def test_a_voter_on_an_empty_directory_does_not_vote_for_candidates_with_a_log(tmp_path: Path) -> None:
    """The voter may have lost a log and a vote. It can still take part in a new cluster, even after restarts."""
    log = {"last_offset_epoch": 1, "last_offset": 9}

    async def play(voter: Voter) -> None:
        assert not (await voter.vote(3, candidate=2, **log)).vote_granted
        assert not (await voter.vote(3, candidate=2, pre_vote=True, **log)).vote_granted

    async def again(voter: Voter) -> None:
        assert not (await voter.vote(4, candidate=2, **log)).vote_granted
        assert (await voter.vote(4, candidate=3)).vote_granted
        assert (tmp_path / "data" / NEW_VOTER).exists()
        await voter.begin(4, leader=3)
        assert not (tmp_path / "data" / NEW_VOTER).exists()
        assert (await voter.vote(5, candidate=2, **log)).vote_granted

    async def by_hand(voter: Voter) -> None:
        assert (await voter.vote(3, candidate=2, **log)).vote_granted

    with_voter(tmp_path / "data", play)
    with_voter(tmp_path / "data", again)
    with_voter(tmp_path / "other", play)
    (tmp_path / "other" / NEW_VOTER).unlink()
    with_voter(tmp_path / "other", by_hand)
