"""Raft as a pure function (KIP-595, KIP-996), which uses no clock, disk or network.

`step(state, event, now_ms, chance)` returns the node's next state and a list of effects. The driver executes the
effects in order, beginning with Persist. `leading` contains the leader's part, and `divergence` compares two logs. The
voters are the latest ones in the node's log (KIP-853); the driver reports a change of voters before any other event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from kpybroker.raft.core.leading import (
    Stepped,
    announce,
    check_quorum,
    fetched,
    lead,
    lead_others,
    random_timeout_ms,
    resign,
    synced,
)
from kpybroker.raft.core.state import (
    EPOCH_MAX,
    NOBODY,
    AnswerVote,
    AskVote,
    BeginAsked,
    CaughtUp,
    Commit,
    Effect,
    EndAsked,
    Event,
    Followed,
    LeaderGone,
    LeaderTold,
    Persist,
    ReplicaFetched,
    Resign,
    Role,
    Start,
    State,
    Synced,
    TimerTick,
    VoteAsked,
    Voted,
    VotersChanged,
    VoteTold,
)


def step(state: State, event: Event, now_ms: int, chance: Random) -> Stepped:
    """Return the next state and the effects. This never fails: an event that does not apply changes nothing.

    `now_ms` is only compared with deadlines set here; `chance` spreads the deadlines of rival candidates.
    """
    return _STEPS[type(event)](state, event, now_ms, chance)


# ---- time


def _start(state: State, event: Start, now_ms: int, chance: Random) -> Stepped:
    """Resume with the state that was read from disk. A node that was the leader before does not continue to lead,
    because it may have acknowledged records that its disk does not have."""
    if state.leader_id != NOBODY:
        return _follow(state, state.epoch, state.leader_id, now_ms, chance)
    if not state.may_stand:
        return state, []
    if not state.others_needed:
        return _stand(state, now_ms, chance)
    # shorter than an election timeout, because pre-votes do not disturb other nodes
    wait_ms = chance.randrange(state.timing.spread_ms)
    return state._replace(role=Role.UNATTACHED, deadline_ms=now_ms + wait_ms), []


def _tick(state: State, event: TimerTick, now_ms: int, chance: Random) -> Stepped:
    if state.deadline_ms is not None and state.deadline_ms <= now_ms:
        if state.is_leader:
            return check_quorum(state, now_ms, chance)
        if not state.may_stand:
            # No Persist is needed: the epoch and the vote are on disk, and after a restart this node may follow the
            # same leader again. Also, the disk may hang, and this node must continue in the meantime.
            return _attach(state, state.epoch, now_ms, chance)[0], []
        if state.role is Role.PROSPECTIVE:
            return _give_up(state, now_ms, chance)
        return _wonder(state, now_ms, chance)
    if state.retry_at_ms is not None and state.retry_at_ms <= now_ms:
        if state.is_leader:
            return announce(state, now_ms)
        return state._replace(retry_at_ms=now_ms + state.timing.retry_ms), _asks(state)
    return state, []


def _fetch_deadline_ms(state: State, now_ms: int, chance: Random) -> int:
    return now_ms + state.timing.fetch_timeout_ms + chance.randrange(state.timing.spread_ms)


# ---- elections


def _wonder(state: State, now_ms: int, chance: Random) -> Stepped:
    """Start a pre-vote, which shows whether this node could win an election, before a new epoch disturbs the other
    nodes."""
    if not state.others_needed:
        return _stand(state, now_ms, chance)
    asking = state._replace(
        role=Role.PROSPECTIVE,
        answers={state.node_id: True} if state.is_voter else {},
        has_fetched=False,
        deadline_ms=random_timeout_ms(state, now_ms, chance),
        retry_at_ms=now_ms + state.timing.retry_ms,
    )
    return asking, _asks(asking)


def _stand(state: State, now_ms: int, chance: Random) -> Stepped:
    """Start an election in a new epoch, unless this is the last possible epoch. If this node's own vote is a majority,
    it becomes the leader at once."""
    if state.epoch >= EPOCH_MAX:
        return _give_up(state, now_ms, chance)
    epoch = state.epoch + 1
    candidate = state._replace(
        voted=Voted(epoch, NOBODY, state.node_id),
        role=Role.CANDIDATE,
        answers={state.node_id: True} if state.is_voter else {},
        has_fetched=False,
        deadline_ms=random_timeout_ms(state, now_ms, chance),
        retry_at_ms=now_ms + state.timing.retry_ms,
    )
    if not state.others_needed:
        return lead(candidate, now_ms)  # one write persists both the vote and the result of the election
    return candidate, [Persist(candidate.voted), *_asks(candidate)]


def _asks(state: State) -> list[Effect]:
    """Send Vote to the voters that have not responded. In a pre-vote, send it also to voters that refused: they may
    have lost the leader since then."""
    is_pre_vote = state.role is Role.PROSPECTIVE
    return [
        AskVote(voter, state.epoch, state.tail, is_pre_vote)
        for voter in state.voters
        if voter not in state.answers or (is_pre_vote and not state.answers[voter])
    ]


def _give_up(state: State, now_ms: int, chance: Random) -> Stepped:
    """End a pre-vote or election that was lost: follow the epoch's leader again, or wait for the next election."""
    if state.leader_id != NOBODY:
        return _follow(state, state.epoch, state.leader_id, now_ms, chance)
    backoff_ms = 1 + chance.randrange(max(state.timing.election_backoff_max_ms, 1))
    waiting = state.out_of_office()._replace(role=Role.UNATTACHED, deadline_ms=now_ms + backoff_ms)
    return waiting, []


def _vote_asked(state: State, event: VoteAsked, now_ms: int, chance: Random) -> Stepped:
    effects: list[Effect] = []
    if event.epoch < state.epoch:
        return state, [AnswerVote(granted=False)]
    if event.epoch > state.epoch:
        state, effects = _attach(state, event.epoch, now_ms, chance)
    if event.tail < state.tail or not state.may_elect(event.tail):
        return state, [*effects, AnswerVote(granted=False)]
    if event.is_pre_vote:
        has_leader = state.is_leader or (state.role is Role.FOLLOWER and state.has_fetched)
        return state, [*effects, AnswerVote(granted=not has_leader)]
    has_voted = state.voted.voted_id != NOBODY and not _is_voted_for(state.voted, event)
    if state.voted.leader_id != NOBODY or has_voted or event.candidate == state.node_id:
        return state, [*effects, AnswerVote(granted=False)]
    voted = Voted(event.epoch, NOBODY, event.candidate, event.directory)
    granting = state.out_of_office()._replace(
        voted=voted,
        role=Role.UNATTACHED,
        deadline_ms=random_timeout_ms(state, now_ms, chance) if state.may_stand else None,
    )
    return granting, [Persist(voted), AnswerVote(granted=True)]


def _is_voted_for(voted: Voted, event: VoteAsked) -> bool:
    """Whether this node has voted for this candidate. A candidate with the same id and another directory is a different
    one."""
    return voted.voted_id == event.candidate and voted.voted_directory in (b"", event.directory)


def _vote_told(state: State, event: VoteTold, now_ms: int, chance: Random) -> Stepped:
    if event.epoch != state.epoch or not event.granted:
        known = state
        state, effects = _leader_told(state, LeaderTold(event.epoch, event.leader_id), now_ms, chance)
        if state is not known or event.epoch != state.epoch:
            return state, effects
    asked = Role.PROSPECTIVE if event.is_pre_vote else Role.CANDIDATE
    if state.role is not asked or event.voter not in state.voters:
        return state, []
    counted = state._replace(answers={**state.answers, event.voter: event.granted})
    granted = sum(counted.answers.values())
    if granted >= state.majority:
        return _stand(counted, now_ms, chance) if event.is_pre_vote else lead(counted, now_ms)
    if len(counted.answers) - granted > len(state.voters) - state.majority:
        return _give_up(counted, now_ms, chance)
    return counted, []


# ---- following


def _attach(state: State, epoch: int, now_ms: int, chance: Random) -> Stepped:
    """Enter an epoch without a known leader. A vote that was cast in this epoch is kept."""
    voted = _vote_kept(state, epoch)
    waiting = state.out_of_office()._replace(
        voted=voted,
        role=Role.UNATTACHED,
        deadline_ms=random_timeout_ms(state, now_ms, chance) if state.may_stand else None,
    )
    return waiting, [Persist(voted)]


def _vote_kept(state: State, epoch: int) -> Voted:
    """The vote that was cast in an epoch, without the leader; empty for a new epoch."""
    return state.voted._replace(leader_id=NOBODY) if epoch == state.epoch else Voted(epoch)


def _follow(state: State, epoch: int, leader_id: int, now_ms: int, chance: Random) -> Stepped:
    voted = _vote_kept(state, epoch)._replace(leader_id=leader_id)
    effects: list[Effect] = [Persist(voted)] if voted != state.voted else []
    has_elected = voted.voted_id == leader_id
    following = state.out_of_office()._replace(
        voted=voted,
        role=Role.FOLLOWER,
        deadline_ms=_fetch_deadline_ms(state, now_ms, chance),
        is_new=state.is_new and not has_elected,
    )
    return following, [*effects, CaughtUp()] if state.is_new and has_elected else effects


def _leader_told(state: State, event: LeaderTold, now_ms: int, chance: Random) -> Stepped:
    """Adopt a later epoch, or the leader of the current epoch if it was not known yet."""
    if event.epoch < state.epoch:
        return state, []
    if event.leader_id in (NOBODY, state.node_id):
        return _attach(state, event.epoch, now_ms, chance) if event.epoch > state.epoch else (state, [])
    if event.epoch > state.epoch or state.voted.leader_id == NOBODY:
        return _follow(state, event.epoch, event.leader_id, now_ms, chance)
    return state, []


def _begin_asked(state: State, event: BeginAsked, now_ms: int, chance: Random) -> Stepped:
    if event.epoch == state.epoch and event.leader_id == state.leader_id and state.role is Role.PROSPECTIVE:
        return _follow(state, event.epoch, event.leader_id, now_ms, chance)  # the leader is alive
    return _leader_told(state, LeaderTold(event.epoch, event.leader_id), now_ms, chance)


def _followed(state: State, event: Followed, now_ms: int, chance: Random) -> Stepped:
    if state.role is not Role.FOLLOWER or (event.epoch, event.leader_id) != (state.epoch, state.leader_id):
        return state, []
    following = state._replace(has_fetched=True, deadline_ms=_fetch_deadline_ms(state, now_ms, chance))
    effects: list[Effect] = []
    if state.is_new and state.tail.epoch == state.epoch and 0 < event.high_watermark <= state.tail.end:
        # This voter has every record from before the leader's epoch. It also has every record of the epoch that it may
        # have helped to commit before it lost its disk.
        following, effects = following._replace(is_new=False), [CaughtUp()]
    committed = min(event.high_watermark, state.tail.end)
    if committed <= state.high_watermark:
        return following, effects
    return following._replace(high_watermark=committed), [*effects, Commit(committed)]


def _leader_gone(state: State, event: LeaderGone, now_ms: int, chance: Random) -> Stepped:
    """Start an election soon, because the leader's process has ended. There is no need to wait for the fetch
    timeout."""
    if state.role is not Role.FOLLOWER or (event.epoch, event.leader_id) != (state.epoch, state.leader_id):
        return state, []
    soon_ms = now_ms + chance.randrange(state.timing.spread_ms)
    return _hurry(state, soon_ms), []


def _end_asked(state: State, event: EndAsked, now_ms: int, chance: Random) -> Stepped:
    """Start an election, because the leader resigned. The first successor starts it at once, the other voters one after
    another."""
    effects: list[Effect] = []
    if event.epoch > state.epoch:
        state, effects = _follow(state, event.epoch, event.leader_id, now_ms, chance)
    if state.role is not Role.FOLLOWER or (event.epoch, event.leader_id) != (state.epoch, state.leader_id):
        return state, effects
    place = len(event.successors)
    if state.node_id in event.successors:
        place = event.successors.index(state.node_id)
    wait_ms = place * state.timing.retry_ms
    return _hurry(state, now_ms + wait_ms), effects


def _hurry(state: State, at_ms: int) -> State:
    deadline_ms = at_ms if state.deadline_ms is None else min(at_ms, state.deadline_ms)
    return state._replace(has_fetched=False, deadline_ms=deadline_ms)


# ---- voters


def _voters_changed(state: State, event: VotersChanged, now_ms: int, chance: Random) -> Stepped:
    """Adopt the voters of the newest record in the log. The change takes effect now, even if it is not committed."""
    if state.is_leader:
        return lead_others(state, event, now_ms, chance)
    answers = {voter: granted for voter, granted in state.answers.items() if voter in event.voters}
    state = state._replace(
        voters=event.voters,
        voters_end=event.end,
        is_stranger=event.is_stranger,
        is_leaving=event.is_leaving,
        answers=answers,
    )
    if state.may_stand:
        if state.role is Role.UNATTACHED and state.deadline_ms is None:
            return state._replace(deadline_ms=random_timeout_ms(state, now_ms, chance)), []
        return state, []
    if state.role in (Role.PROSPECTIVE, Role.CANDIDATE):
        return _attach(state, state.epoch, now_ms, chance)
    return (state, []) if state.role is Role.FOLLOWER else (state._replace(deadline_ms=None), [])


_STEPS: Mapping[type[Any], Callable[[State, Any, int, Random], Stepped]] = {
    Start: _start,
    TimerTick: _tick,
    Synced: synced,
    ReplicaFetched: fetched,
    VoteAsked: _vote_asked,
    VoteTold: _vote_told,
    LeaderTold: _leader_told,
    BeginAsked: _begin_asked,
    EndAsked: _end_asked,
    Followed: _followed,
    LeaderGone: _leader_gone,
    Resign: resign,
    VotersChanged: _voters_changed,
}
