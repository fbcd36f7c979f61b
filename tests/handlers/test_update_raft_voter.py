"""Tests that a controller writes only actual changes of UpdateRaftVoter to the log."""

from __future__ import annotations

from pathlib import Path

from tests.server.voting import Quorum, run_quorum


def test_a_voter_reports_its_listeners(tmp_path: Path) -> None:
    async def play(quorum: Quorum) -> None:
        await quorum.start(1)
        lone = quorum.nodes[1].broker.quorum
        end = lone.end
        same = lone.driver.identity.updated(lone.epoch)
        assert lone.update_voter(same).error_code == 0
        assert lone.end == end
        moved = lone.driver.identity._replace(listener=("CONTROLLER", "127.0.0.1", 1)).updated(lone.epoch)
        told = lone.update_voter(moved)
        assert (told.error_code, told.current_leader.leader_id) == (0, 1)
        assert lone.voters.voters[0].endpoints == (("CONTROLLER", "127.0.0.1", 1),)
        assert lone.end > end

    run_quorum(tmp_path, play)
