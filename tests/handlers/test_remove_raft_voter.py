"""Tests RemoveRaftVoter over a socket."""

from __future__ import annotations

from pathlib import Path

from kpybroker.errors import ErrorCode
from tests.server.voting import Quorum, run_quorum


def test_a_voter_becomes_an_observer(tmp_path: Path) -> None:
    async def play(quorum: Quorum) -> None:
        await quorum.of_three()
        told = await quorum.remove(3)
        assert (told.error_code, told.error_message) == (0, None)
        await quorum.voting(1, 2)
        assert (await quorum.remove(3)).error_code == ErrorCode.VOTER_NOT_FOUND

    run_quorum(tmp_path, play)


def test_the_last_voter_cannot_be_removed(tmp_path: Path) -> None:
    async def play(quorum: Quorum) -> None:
        await quorum.start(1)
        assert (await quorum.remove(1)).error_code == ErrorCode.VOTER_NOT_FOUND
        assert quorum.nodes[1].broker.quorum.is_active

    run_quorum(tmp_path, play)
