"""Invariants of a quorum on an unreliable network. The model asserts most of them at every step."""

from __future__ import annotations

from typing import Any

import pytest

from kpybroker.raft.core.state import Role
from tests.raft.model import Quorum

pytestmark = pytest.mark.slow


def seeds(count: int, quick: int = 3) -> list[Any]:
    """Seeds from 0 on. All but the first few are marked slow."""
    return [pytest.param(seed, marks=() if seed < quick else pytest.mark.slow) for seed in range(count)]


def trouble(quorum: Quorum, until_ms: int, changes: float = 0.0, losses: float = 0.0) -> None:
    """Cause crashes, network partitions, message loss and delay, one at a time and together.

    `changes` and `losses` are the probabilities, in each round, of a change of voters and of the loss of a directory.
    """
    chance = quorum.random
    ids = list(quorum.nodes)
    while quorum.now < until_ms:
        match chance.randrange(9):
            case 0:
                quorum.crash(quorum.nodes[chance.choice(ids)])
            case 1 | 2:
                down = [node for node in quorum.nodes.values() if not node.up]
                if down:
                    quorum.restart(chance.choice(down))
            case 3:
                side = {number for number in ids if chance.random() < 0.5}
                quorum.cut = {(a, b) for a in ids for b in ids if (a in side) != (b in side)}
                if chance.random() < 0.3:
                    quorum.cut = {(a, b) for a, b in sorted(quorum.cut) if chance.random() < 0.5}
            case 4 | 5:
                quorum.cut = set()
            case 6:
                quorum.loss = chance.choice([0.0, 0.05, 0.3])
                quorum.doubling = chance.choice([0.0, 0.1, 0.5])
            case 7:
                quorum.delay_ms = chance.choice([2, 5, 50, 400])
            case 8:
                quorum.snapshot(quorum.nodes[chance.choice(ids)])
        if changes and chance.random() < changes:
            quorum.change_voters()
        if losses and chance.random() < losses:
            quorum.lose_directory(quorum.nodes[chance.choice(ids)])
        for _ in range(chance.randrange(4)):
            quorum.append()
        quorum.run(quorum.now + chance.randrange(300))


@pytest.mark.parametrize("voters", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", seeds(12))
def test_no_committed_record_is_lost_and_a_healed_quorum_continues(seed: int, voters: int) -> None:
    quorum = Quorum(seed, voters, observers=seed % 3)
    trouble(quorum, 15_000)
    goes_on(quorum)


@pytest.mark.parametrize("voters", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", seeds(6))
def test_the_invariants_hold_while_voters_change(seed: int, voters: int) -> None:
    """There is one leader per epoch and no committed record is lost, although majorities change continually
    (KIP-853)."""
    quorum = Quorum(seed, voters, observers=5 - voters, new_voters_wait=False)
    trouble(quorum, 20_000, changes=0.5)
    goes_on(quorum)
    assert any(quorum.change_voters() for _ in range(20))
    quorum.run(quorum.now + 5_000)
    goes_on(quorum)
    leader = quorum.leader
    assert leader is not None
    assert leader.state.is_voter
    assert quorum.voters_of(quorum.committed) == (leader.state.voters, leader.state.voters_end)


@pytest.mark.parametrize("voters", [3, 5])
@pytest.mark.parametrize("seed", seeds(12))
def test_a_minority_may_lose_its_directories(seed: int, voters: int) -> None:
    """Votes and logs are lost with the directories, but committed records are not."""
    quorum = Quorum(seed, voters, observers=seed % 2)
    trouble(quorum, 20_000, losses=0.3)
    goes_on(quorum)
    assert not any(node.is_new for node in quorum.nodes.values())


def test_a_vote_after_a_lost_directory_is_noticed() -> None:
    """Tests the model: it detects that voters without their votes and logs lose committed records."""

    def forgetful() -> None:
        for seed in range(400):
            trouble(Quorum(seed, 3, new_voters_wait=False), 20_000, losses=0.3)

    with pytest.raises(AssertionError, match=r"two leaders of epoch|lacks committed records|committed logs agree"):
        forgetful()


def goes_on(quorum: Quorum) -> None:
    """Check that, after the end of all faults, every node has the whole log and a new record commits."""
    quorum.heal()
    quorum.run(quorum.now + 5_000)
    assert quorum.leader is not None, "a healthy quorum elects a leader"
    before = len(quorum.committed)
    assert quorum.append()
    quorum.run(quorum.now + 3_000)
    assert len(quorum.committed) > before, "a healthy quorum commits records"
    for node in quorum.nodes.values():
        assert node.log == quorum.committed, f"node {node.node_id} has not caught up"
        assert node.state.high_watermark == len(quorum.committed)
        assert node.state.role in (Role.LEADER, Role.FOLLOWER)


@pytest.mark.parametrize("seed", seeds(6))
def test_a_quorum_without_faults_keeps_its_leader(seed: int) -> None:
    quorum = Quorum(seed, 3, observers=1)
    quorum.run(2_000)
    leader = quorum.leader
    assert leader is not None
    epoch = leader.state.epoch
    for _ in range(20):
        quorum.append()
        quorum.run(quorum.now + 500)
    assert quorum.leader is leader
    assert leader.state.epoch == epoch


@pytest.mark.parametrize("seed", seeds(6))
def test_a_node_that_was_cut_off_does_not_disturb_the_others(seed: int) -> None:
    """With pre-votes, the node has not raised the epoch when it returns (KIP-996)."""
    quorum = Quorum(seed, 3)
    quorum.run(2_000)
    leader = quorum.leader
    assert leader is not None
    epoch = leader.state.epoch
    lonely = next(number for number in quorum.voters if number != leader.node_id)
    quorum.cut = {pair for other in quorum.nodes for pair in ((lonely, other), (other, lonely))}
    quorum.run(quorum.now + 10_000)
    quorum.cut = set()
    quorum.run(quorum.now + 3_000)
    assert quorum.leader is leader
    assert leader.state.epoch == epoch
    assert quorum.nodes[lonely].state.leader_id == leader.node_id


@pytest.mark.parametrize("seed", seeds(6))
def test_a_leader_without_majority_resigns_and_another_leads(seed: int) -> None:
    quorum = Quorum(seed, 3)
    quorum.run(2_000)
    old = quorum.leader
    assert old is not None
    quorum.cut = {pair for other in quorum.nodes for pair in ((old.node_id, other), (other, old.node_id))}
    quorum.run(quorum.now + 4_000)
    assert not old.state.is_leader
    new = quorum.leader
    assert new is not None
    assert new is not old


def test_a_lost_vote_is_noticed() -> None:
    """Tests the model: it detects that nodes that lose their votes in a crash elect two leaders in one epoch sooner or
    later."""

    def forgetful() -> None:
        for seed in range(400):
            trouble(Quorum(seed, 3, persist=False), 20_000)

    with pytest.raises(AssertionError, match=r"two leaders of epoch|lacks committed records|committed logs agree"):
        forgetful()


def test_careless_changes_of_voters_are_noticed() -> None:
    """Tests the model: it detects that two majorities may not overlap with several uncommitted changes of voters at
    once."""

    def careless() -> None:
        for seed in range(400):
            quorum = Quorum(seed, 4, observers=1)
            quorum.changes_with_care = False
            trouble(quorum, 20_000, changes=0.9)

    with pytest.raises(AssertionError, match=r"two leaders of epoch|lacks|committed logs agree|to truncate"):
        careless()
