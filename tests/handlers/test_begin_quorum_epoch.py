"""Tests BeginQuorumEpoch over a socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpybroker.errors import ErrorCode
from kpybroker.raft.core.state import Role
from tests.handlers.quorums import Voter, with_voter


@pytest.mark.parametrize("version", [0, 1])
def test_a_leader_is_followed_and_stored(tmp_path: Path, version: int) -> None:
    async def play(voter: Voter) -> None:
        told = await voter.begin(4, leader=2, version=version)
        assert (told.error_code, told.leader_id, told.leader_epoch) == (0, 2, 4)
        assert voter.node.broker.quorum.state.role is Role.FOLLOWER
        assert (voter.stored["leaderEpoch"], voter.stored["leaderId"]) == (4, 2)
        assert not (await voter.vote(4, candidate=3)).vote_granted

    with_voter(tmp_path / "data", play)


def test_an_epoch_has_one_leader_and_earlier_epochs_are_refused(tmp_path: Path) -> None:
    async def play(voter: Voter) -> None:
        await voter.begin(4, leader=2)
        assert (await voter.begin(4, leader=3)).error_code == ErrorCode.INVALID_REQUEST
        assert (await voter.begin(3, leader=3)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (await voter.begin(9, leader=7)).error_code == ErrorCode.INCONSISTENT_VOTER_SET
        assert voter.node.broker.quorum.leader_id == 2
        assert (await voter.begin(5, leader=3)).leader_id == 3

    with_voter(tmp_path / "data", play)


def test_addresses_of_a_refused_leader_are_ignored(tmp_path: Path) -> None:
    async def play(voter: Voter) -> None:
        await voter.begin(4, leader=2, listens=(("CONTROLLER", "10.0.0.2", 9093),))
        addresses = voter.node.broker.quorum.driver.addresses
        assert addresses.of(2) == ("10.0.0.2", 9093)
        for epoch, leader in ((3, 2), (4, 3), (9, 7)):
            told = await voter.begin(epoch, leader=leader, listens=(("CONTROLLER", "evil", 1),))
            assert told.error_code != 0
        assert addresses.of(2) == ("10.0.0.2", 9093)
        assert addresses.of(3) != ("evil", 1)
        assert addresses.of(7) is None

    with_voter(tmp_path / "data", play)
