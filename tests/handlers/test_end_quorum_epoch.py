"""Tests EndQuorumEpoch over a socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpybroker.errors import ErrorCode
from tests.handlers.quorums import Voter, with_voter


@pytest.mark.parametrize("version", [0, 1])
def test_a_follower_does_not_wait_for_the_timeout_of_a_resigned_leader(tmp_path: Path, version: int) -> None:
    async def play(voter: Voter) -> None:
        await voter.begin(4, leader=2)
        quorum = voter.node.broker.quorum
        before = quorum.state.deadline_ms
        assert (await voter.end(4, leader=2, version=version)).error_code == 0
        assert quorum.state.deadline_ms is not None
        assert before is not None
        assert quorum.state.deadline_ms < before
        assert (await voter.vote(4, candidate=3, pre_vote=True)).vote_granted, "it does not wait for the old leader"

    with_voter(tmp_path / "data", play)


def test_only_the_leader_of_this_epoch_can_resign(tmp_path: Path) -> None:
    async def play(voter: Voter) -> None:
        await voter.begin(4, leader=2)
        assert (await voter.end(3, leader=2)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (await voter.end(4, leader=3)).error_code == ErrorCode.INVALID_REQUEST
        assert voter.node.broker.quorum.leader_id == 2

    with_voter(tmp_path / "data", play)
