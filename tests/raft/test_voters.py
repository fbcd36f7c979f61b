"""Who votes, as a log says it: what may still be taken back counts, too."""

from __future__ import annotations

from kpybroker.config import parse_config
from kpybroker.raft.core.voter_set import Voter, VoterSet
from kpybroker.raft.log.voters import Voters
from kpybroker.wire.records.snapshot import KRAFT_VERSION, KRAFT_VOTERS
from kpybroker.wire.stored import quorum as messages

MINE, OTHERS = Voter(1, bytes([1]) * 16), (Voter(2, bytes([2]) * 16), Voter(3, bytes([3]) * 16))


def told(*voters: Voter) -> list[tuple[int, object]]:
    version = messages.KRaftVersionRecord(kraft_version=1)
    return [(KRAFT_VERSION, version), (KRAFT_VOTERS, VoterSet.of(voters).record())]


def three_voters(committed: list[int]) -> Voters:
    """Node 1's view of a log whose first 10 records name nodes 1 to 3."""
    servers = {"controller.quorum.bootstrap.servers": "h:1", "process.roles": "controller", "node.id": "1"}
    config = parse_config({**servers, "listeners": "CONTROLLER://:0", "log.dirs": "/d"})
    voters = Voters(config, MINE.directory_id, lambda: committed[-1])
    voters.learn(told(MINE, *OTHERS), 10)
    return voters


def test_who_was_removed_is_leaving_until_that_has_committed() -> None:
    committed = [10]
    voters = three_voters(committed)
    assert not voters.change.is_leaving
    voters.learn(told(*OTHERS), 20)
    assert voters.change.is_leaving
    committed.append(20)
    assert not voters.change.is_leaving


def test_what_the_next_leader_says_of_voters_hides_no_removal() -> None:
    """It may say again who votes, since one of them listens elsewhere now: the removal before has not committed yet."""
    voters = three_voters([10])
    voters.learn(told(*OTHERS), 20)
    voters.learn(told(OTHERS[0], OTHERS[1]._replace(endpoints=(("CONTROLLER", "elsewhere", 1),))), 30)
    assert voters.change.is_leaving
