"""Tests of the Raft function `step`: sequences of events and the expected effects."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.raft.core import state as raft
from kpybroker.raft.core.core import step
from kpybroker.raft.core.state import EPOCH_MAX, NOBODY, Role, State, Tail, Voted

NOW_MS = 1000


def play(state: State, *script: raft.Event, now_ms: int = NOW_MS) -> tuple[State, list[str]]:
    """Run events, and return the state and the effects of each event as a line of text."""
    lines = []
    for event in script:
        state, effects = step(state, event, now_ms, Random(1))
        lines.append("; ".join(map(shown, effects)) or "nothing")
    return state, lines


def shown(effect: raft.Effect) -> str:
    match effect:
        case raft.Persist(Voted(epoch, leader, voted)):
            return f"persist epoch={epoch} leader={leader} voted={voted}"
        case raft.Lead(epoch, granting):
            return f"lead epoch={epoch} granted by {list(granting)}"
        case raft.Commit(end):
            return f"commit {end}"
        case raft.AskVote(to, epoch, _, is_pre_vote):
            return f"{'pre-vote' if is_pre_vote else 'vote'} of {to} for epoch={epoch}"
        case raft.AskBegin(to, epoch):
            return f"tell {to} of epoch={epoch}"
        case raft.AskEnd(to, epoch, successors):
            return f"tell {to} that epoch={epoch} ends, then {list(successors)}"
        case raft.AnswerVote(granted):
            return "granted" if granted else "refused"


def late(state: State) -> State:
    """The state at the time of its deadline."""
    return state._replace(deadline_ms=NOW_MS)


def granted(voter: int, epoch: int, *, pre: bool) -> raft.VoteTold:
    return raft.VoteTold(voter, epoch, NOBODY, True, pre)


def refused(voter: int, epoch: int, *, pre: bool, leader: int = NOBODY) -> raft.VoteTold:
    return raft.VoteTold(voter, epoch, leader, False, pre)


def leader_of_three(end: int = 0) -> State:
    state = State(1, (1, 2, 3), Voted(4, NOBODY, 1), Tail(3, end), role=Role.CANDIDATE, answers={1: True})
    state, lines = play(state, granted(2, 4, pre=False))
    assert lines == [
        "persist epoch=4 leader=1 voted=-1; lead epoch=4 granted by [1, 2]; tell 2 of epoch=4; tell 3 of epoch=4"
    ]
    return state


# ---- one voter


def test_one_voter_elects_itself_and_commits_what_it_has_on_disk() -> None:
    state, lines = play(State(1, (1,)), raft.Start(), *map(raft.Synced, (3, 3, 2, 12)))
    assert lines == [
        "persist epoch=1 leader=1 voted=-1; lead epoch=1 granted by [1]",
        "commit 3",
        "nothing",
        "nothing",
        "commit 12",
    ]
    assert state.is_leader
    assert state.wake_ms is None


def test_a_restart_begins_a_new_epoch_and_commits_the_old_records_with_its_own() -> None:
    state = State(1, (1,), Voted(7, 1, NOBODY), Tail(7, 40))
    _, lines = play(state, raft.Start(), raft.Synced(40), raft.Synced(41))
    assert lines == ["persist epoch=8 leader=1 voted=-1; lead epoch=8 granted by [1]", "nothing", "commit 41"]


# ---- elections


def test_a_pre_vote_comes_before_an_election() -> None:
    state, lines = play(late(State(1, (1, 2, 3), Voted(4))), raft.TimerTick(), granted(3, 4, pre=True))
    assert lines == [
        "pre-vote of 2 for epoch=4; pre-vote of 3 for epoch=4",
        "persist epoch=5 leader=-1 voted=1; vote of 2 for epoch=5; vote of 3 for epoch=5",
    ]
    state, lines = play(state, granted(2, 4, pre=True), refused(2, 5, pre=False), granted(3, 5, pre=False))
    assert lines[:2] == ["nothing", "nothing"]
    assert lines[2].startswith("persist epoch=5 leader=1 voted=-1; lead epoch=5 granted by [1, 3]")


def test_a_silent_voter_is_asked_again_until_the_election_is_over() -> None:
    state, _ = play(late(State(1, (1, 2, 3), Voted(4))), raft.TimerTick(), refused(2, 4, pre=True))
    assert state.retry_at_ms is not None
    _, lines = play(state, raft.TimerTick(), now_ms=state.retry_at_ms)
    assert lines == ["pre-vote of 2 for epoch=4; pre-vote of 3 for epoch=4"]
    state, lines = play(late(state), raft.TimerTick())
    assert lines == ["nothing"]
    assert state.role is Role.UNATTACHED
    assert state.deadline_ms is not None


def test_a_voter_has_one_vote_per_epoch() -> None:
    asked = raft.VoteAsked(2, 5, Tail(4, 10), is_pre_vote=False)
    other = raft.VoteAsked(3, 5, Tail(4, 10), is_pre_vote=False)
    state, lines = play(State(1, (1, 2, 3), Voted(4, 2, NOBODY), Tail(4, 10)), asked, other, asked)
    assert lines == [
        "persist epoch=5 leader=-1 voted=2; granted",
        "refused",
        "persist epoch=5 leader=-1 voted=2; granted",
    ]
    state, lines = play(state, raft.BeginAsked(2, 5), asked, raft.VoteAsked(3, 4, Tail(9, 99), is_pre_vote=False))
    assert lines == ["persist epoch=5 leader=2 voted=2", "refused", "refused"]
    assert state.role is Role.FOLLOWER


@pytest.mark.parametrize(
    ("tail", "answer"), [((4, 10), "granted"), ((5, 1), "granted"), ((4, 9), "refused"), ((3, 99), "refused")]
)
@pytest.mark.parametrize("is_pre_vote", [True, False])
def test_a_candidate_with_a_shorter_log_gets_no_vote(tail: tuple[int, int], answer: str, is_pre_vote: bool) -> None:
    state = State(1, (1, 2, 3), Voted(7), Tail(4, 10))
    _, lines = play(state, raft.VoteAsked(2, 7, Tail(*tail), is_pre_vote))
    assert lines[0].endswith(answer)


def test_a_follower_refuses_pre_votes_while_it_hears_from_its_leader() -> None:
    state = State(1, (1, 2, 3), Voted(4, 2, NOBODY))
    asked = raft.VoteAsked(3, 4, Tail(), is_pre_vote=True)
    state, lines = play(state, raft.Start(), asked, raft.Followed(2, 4, 0), asked, raft.LeaderGone(2, 4), asked)
    assert lines == ["nothing", "granted", "nothing", "refused", "nothing", "granted"]
    assert state.deadline_ms is not None
    assert state.deadline_ms < NOW_MS + state.timing.election_timeout_ms


def test_a_prospective_candidate_learns_that_the_leader_is_alive() -> None:
    state, _ = play(late(State(1, (1, 2, 3), Voted(4, 2, NOBODY), role=Role.FOLLOWER)), raft.TimerTick())
    assert state.role is Role.PROSPECTIVE
    again, _ = play(state, raft.BeginAsked(2, 4))
    assert again.role is Role.FOLLOWER
    again, _ = play(state, refused(2, 4, pre=True, leader=2), refused(3, 4, pre=True, leader=2))
    assert again.role is Role.FOLLOWER
    assert again.leader_id == 2


def test_a_later_epoch_ends_every_role() -> None:
    for role in (Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE, Role.CANDIDATE, Role.RESIGNED):
        state, lines = play(State(1, (1, 2, 3), Voted(4), role=role), raft.LeaderTold(6, 3))
        assert lines == ["persist epoch=6 leader=3 voted=-1"]
        assert (state.role, state.leader_id) == (Role.FOLLOWER, 3)
    state, lines = play(leader_of_three(), refused(2, 9, pre=False))
    assert lines == ["persist epoch=9 leader=-1 voted=-1"]
    assert not state.is_leader


def test_a_leader_that_restarts_does_not_continue_to_lead() -> None:
    state, lines = play(State(1, (1, 2, 3), Voted(4, 1, NOBODY)), raft.Start())
    assert lines == ["nothing"]
    assert state.leader_id == NOBODY
    _, lines = play(state, raft.VoteAsked(2, 4, Tail(9, 9), is_pre_vote=False))
    assert lines == ["refused"]


# ---- leading


def test_earlier_records_commit_with_the_first_one_of_the_epoch() -> None:
    state = leader_of_three(end=10)
    script = [
        raft.Synced(11),
        raft.ReplicaFetched(2, 10),
        raft.ReplicaFetched(3, 7),
        raft.ReplicaFetched(2, 11),
        raft.ReplicaFetched(9, 50),
    ]
    _, lines = play(state, *script)
    assert lines == ["nothing", "nothing", "nothing", "commit 11", "nothing"]


def test_a_leader_announces_itself_to_voters_that_do_not_fetch() -> None:
    state, _ = play(leader_of_three(), raft.ReplicaFetched(2, 0))
    assert state.retry_at_ms is not None
    state, lines = play(state, raft.TimerTick(), now_ms=state.retry_at_ms)
    assert lines == ["tell 3 of epoch=4"]


def test_a_leader_without_fetches_from_a_majority_resigns() -> None:
    state, _ = play(leader_of_three(), raft.ReplicaFetched(2, 0), now_ms=2000)
    assert state.deadline_ms is not None
    state, lines = play(state, raft.TimerTick(), now_ms=state.deadline_ms)
    assert state.is_leader
    assert state.deadline_ms == 2000 + state.timing.check_quorum_ms
    state, lines = play(state, raft.TimerTick(), now_ms=state.deadline_ms)
    assert lines == ["tell 2 that epoch=4 ends, then [2, 3]; tell 3 that epoch=4 ends, then [2, 3]"]
    assert (state.role, state.leader_id) == (Role.RESIGNED, NOBODY)


def test_the_best_successor_starts_the_first_election() -> None:
    _, lines = play(
        leader_of_three(), raft.ReplicaFetched(3, 9), raft.ReplicaFetched(2, 5), raft.Resign(), raft.Resign()
    )
    assert lines[2] == "tell 2 that epoch=4 ends, then [3, 2]; tell 3 that epoch=4 ends, then [3, 2]"
    assert lines[3] == "nothing"
    waits = []
    for node in (3, 2):
        follower = State(node, (1, 2, 3), Voted(4, 1, NOBODY))
        follower, _ = play(follower, raft.Start(), raft.Followed(1, 4, 0), raft.EndAsked(1, 4, (3, 2)))
        assert follower.deadline_ms is not None
        waits.append(follower.deadline_ms - NOW_MS)
    assert waits[0] == 0 < waits[1]


# ---- following


def test_a_follower_commits_the_committed_records_that_it_has() -> None:
    state = State(1, (1, 2, 3), Voted(4, 2, NOBODY), Tail(4, 10))
    script = [
        raft.Start(),
        raft.Followed(2, 4, 7),
        raft.Followed(2, 4, 15),
        raft.Followed(3, 4, 12),
        raft.Followed(2, 4, 5),
    ]
    _, lines = play(state, *script)
    assert lines == ["nothing", "commit 7", "commit 10", "nothing", "nothing"]


def test_an_observer_follows_and_is_never_a_candidate() -> None:
    state, lines = play(
        State(9, (1, 2, 3)), raft.Start(), raft.TimerTick(), raft.LeaderTold(3, 2), raft.Followed(2, 3, 0)
    )
    assert lines == ["nothing", "nothing", "persist epoch=3 leader=2 voted=-1", "nothing"]
    state, lines = play(late(state), raft.TimerTick())
    assert lines == ["nothing"], "an observer's timeout has no effects"
    assert (state.role, state.deadline_ms) == (Role.UNATTACHED, None)


@pytest.mark.parametrize("voters", [1, 2, 3, 4, 5])
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a_majority_has_all_committed_records_and_the_watermark_never_falls(voters: int, data: st.DataObject) -> None:
    """This tests only the high watermark, with any number of voters and a fixed leader."""
    ids = tuple(range(1, voters + 1))
    start = data.draw(st.integers(0, 5))
    synced = dict.fromkeys(ids, 0)
    had = dict.fromkeys([*ids, 99], 0)
    state = State(1, ids, Voted(1, 1, NOBODY), role=Role.LEADER, synced=synced, fetched_ms={}, epoch_start=start)
    for voter, end in data.draw(st.lists(st.tuples(st.sampled_from([*ids, 99]), st.integers(0, 20)), max_size=20)):
        before = state.high_watermark
        event = raft.Synced(end) if voter == 1 else raft.ReplicaFetched(voter, end)
        state, effects = step(state, event, 0, Random(1))
        assert state.synced is not None
        if effects:
            assert effects == [raft.Commit(state.high_watermark)]
            assert state.high_watermark > max(before, start)
        else:
            assert state.high_watermark == before
        # data that was lost with a disk still counts, because the loss matters only in elections
        had[voter] = max(had[voter], end)
        have = sum(had[voter] >= state.high_watermark for voter in ids)
        assert have > voters // 2
        beyond = sum(synced > max(state.high_watermark, start) for synced in state.synced.values())
        assert beyond <= voters // 2


@pytest.mark.parametrize("voters", [(1,), (1, 2, 3)])
@pytest.mark.parametrize("leader", [NOBODY, 1, 2])
def test_after_the_last_epoch_there_is_no_election(voters: tuple[int, ...], leader: int) -> None:
    """No epoch above int32 is written or sent, regardless of the time that passes and the votes that a node could
    get."""
    state = State(1, voters, Voted(EPOCH_MAX, leader), Tail(3, 9))
    state, lines = play(state, raft.Start())
    for round_ in range(1, 20):
        now_ms = round_ * 100_000
        grants = [granted(voter, EPOCH_MAX, pre=True) for voter in voters[1:]]
        state, more = play(state, raft.TimerTick(), *grants, now_ms=now_ms)
        lines += more
        assert state.epoch == EPOCH_MAX
        assert state.role in (Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE)
    assert not any("persist" in line or "lead" in line or "; vote" in line for line in lines)


def test_the_last_epoch_can_have_a_leader() -> None:
    state, lines = play(State(1, (1,), Voted(EPOCH_MAX - 1), Tail(3, 9)), raft.Start())
    assert state.is_leader
    assert f"lead epoch={EPOCH_MAX} " in lines[0]
