"""Scripts of the quorum's function: events in, effects out."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.raft.core import (
    NOBODY,
    Commit,
    ElectionTimeout,
    Lead,
    Persist,
    State,
    Synced,
    Voted,
    step,
)


def play(state: State, *script: object) -> tuple[State, list[str]]:
    """Run events and show the effects of each as one line."""
    lines = []
    for event in script:
        state, effects = step(state, event, 1000, Random(1))  # type: ignore[arg-type]  # scripts hold events only
        lines.append("; ".join(map(shown, effects)) or "nothing")
    return state, lines


def shown(effect: object) -> str:
    match effect:
        case Persist(Voted(epoch, leader, voted)):
            return f"persist epoch={epoch} leader={leader} voted={voted}"
        case Lead(epoch, granting):
            return f"lead epoch={epoch} granted by {list(granting)}"
        case Commit(end):
            return f"commit {end}"
    raise AssertionError(effect)


def test_one_voter_elects_itself_and_commits_what_it_has_on_disk() -> None:
    state, lines = play(State(1, (1,)), ElectionTimeout(0), Synced(1, 3), Synced(1, 3), Synced(1, 2), Synced(1, 12))
    assert lines == [
        "persist epoch=1 leader=1 voted=-1; lead epoch=1 granted by [1]",
        "commit 3",
        "nothing",
        "nothing",
        "commit 12",
    ]
    assert state.is_leader
    assert state.deadline_ms is None


def test_a_restart_begins_a_new_epoch_and_commits_the_old_records_with_its_own() -> None:
    _, lines = play(State(1, (1,), Voted(7, 1, NOBODY)), ElectionTimeout(40), Synced(1, 40), Synced(1, 41))
    assert lines == ["persist epoch=8 leader=1 voted=-1; lead epoch=8 granted by [1]", "nothing", "commit 41"]


def test_a_leader_is_not_elected_again() -> None:
    _, lines = play(State(1, (1,)), ElectionTimeout(0), ElectionTimeout(5))
    assert lines[1] == "nothing"


def test_an_observer_does_not_stand() -> None:
    state, lines = play(State(9, (1,)), ElectionTimeout(0), Synced(1, 5))
    assert lines == ["nothing", "nothing"]
    assert not state.is_leader


def test_one_vote_of_three_makes_no_leader() -> None:
    state, lines = play(State(1, (1, 2, 3), Voted(4, 2, NOBODY)), ElectionTimeout(10), Synced(1, 10))
    assert lines == ["persist epoch=5 leader=-1 voted=1", "nothing"]
    assert not state.is_leader
    assert state.deadline_ms is not None
    assert 2000 <= state.deadline_ms < 3000


@pytest.mark.parametrize("voters", [1, 2, 3, 4, 5])
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a_majority_has_what_is_committed_and_it_never_recedes(voters: int, data: st.DataObject) -> None:
    """The rule of counting alone, for any number of voters; who leads is given."""
    ids = tuple(range(1, voters + 1))
    start = data.draw(st.integers(0, 5))
    state = State(1, ids, Voted(1, 1, NOBODY), synced=dict.fromkeys(ids, 0), epoch_start=start)
    for voter, end in data.draw(st.lists(st.tuples(st.sampled_from([*ids, 99]), st.integers(0, 20)), max_size=20)):
        before = state.high_watermark
        state, effects = step(state, Synced(voter, end), 0, Random(1))
        assert state.synced is not None
        if effects:
            assert effects == [Commit(state.high_watermark)]
            assert state.high_watermark > max(before, start)
        else:
            assert state.high_watermark == before
        have = sum(synced >= state.high_watermark for synced in state.synced.values())
        assert have > voters // 2
        beyond = sum(synced > max(state.high_watermark, start) for synced in state.synced.values())
        assert beyond <= voters // 2
