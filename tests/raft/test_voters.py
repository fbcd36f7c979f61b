"""The voters in a log take effect at once, although a truncation may restore the previous voters."""

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
    """The voters of node 1, with a log in which nodes 1 to 3 are the voters from offset 10 on."""
    servers = {"controller.quorum.bootstrap.servers": "h:1", "process.roles": "controller", "node.id": "1"}
    config = parse_config({**servers, "listeners": "CONTROLLER://:0", "log.dirs": "/d"})
    voters = Voters(config, MINE.directory_id, lambda: committed[-1])
    voters.learn(told(MINE, *OTHERS), 10)
    return voters


def test_a_removed_node_is_leaving_until_its_removal_has_committed() -> None:
    committed = [10]
    voters = three_voters(committed)
    assert not voters.change.is_leaving
    voters.learn(told(*OTHERS), 20)
    assert voters.change.is_leaving
    committed.append(20)
    assert not voters.change.is_leaving


def test_a_later_voters_record_does_not_hide_a_removal() -> None:
    """The next leader may write the voters again with a new address, before the removal has committed."""
    voters = three_voters([10])
    voters.learn(told(*OTHERS), 20)
    voters.learn(told(OTHERS[0], OTHERS[1]._replace(endpoints=(("CONTROLLER", "elsewhere", 1),))), 30)
    assert voters.change.is_leaving
