"""The leader's part of Raft: announces the leader, processes fetches, checks the quorum, and resigns (KIP-595,
KIP-853).

The offset of a voter's Fetch is the end of its log on disk. A majority of the voters has all records below the high
watermark.
"""

from __future__ import annotations

from random import Random

from kpybroker.raft.core.state import (
    NOBODY,
    AskBegin,
    AskEnd,
    CaughtUp,
    Commit,
    Effect,
    Lead,
    Persist,
    ReplicaFetched,
    Resign,
    Role,
    State,
    Synced,
    Voted,
    VotersChanged,
)

Stepped = tuple[State, list[Effect]]


def random_timeout_ms(state: State, now_ms: int, chance: Random) -> int:
    """The time at which this node starts an election, if no other node has started one."""
    timeout_ms = state.timing.election_timeout_ms
    return now_ms + timeout_ms + chance.randrange(max(timeout_ms, 1))


def lead(state: State, now_ms: int) -> Stepped:
    """Become the leader, as a candidate with the votes of a majority."""
    voted = Voted(state.epoch, state.node_id, NOBODY)
    granting = tuple(voter for voter in state.voters if state.answers.get(voter))
    leader = state.out_of_office()._replace(
        voted=voted,
        role=Role.LEADER,
        synced=dict.fromkeys(state.voters, 0),
        fetched_ms={},
        led_since_ms=now_ms,
        epoch_start=state.tail.end,
        deadline_ms=now_ms + state.timing.check_quorum_ms if state.others_needed else None,
        is_new=False,
    )
    leader, begins = announce(leader, now_ms)
    forms: list[Effect] = [CaughtUp()] if state.is_new else []
    return leader, [Persist(voted), *forms, Lead(voted.epoch, granting), *begins]


def lead_others(state: State, event: VotersChanged, now_ms: int, chance: Random) -> Stepped:
    """Continue to lead with a new set of voters. The progress of voters that are in both sets is kept. A leader that is
    no longer a voter continues to lead for now."""
    assert state.synced is not None
    assert state.fetched_ms is not None
    changed = state._replace(
        voters=event.voters,
        voters_end=event.end,
        is_stranger=event.is_stranger,
        is_leaving=event.is_leaving,
        synced={voter: state.synced.get(voter, 0) for voter in event.voters},
        fetched_ms={voter: at_ms for voter, at_ms in state.fetched_ms.items() if voter in event.voters},
    )
    changed = changed._replace(deadline_ms=now_ms + state.timing.check_quorum_ms if changed.others_needed else None)
    changed, begins = announce(changed, now_ms)
    changed, effects = _settle(changed, now_ms, chance)
    return changed, [*begins, *effects]


def announce(state: State, now_ms: int) -> Stepped:
    """Send BeginQuorumEpoch to voters that do not fetch. It is sent more often at first, while some voters may still be
    in an election."""
    assert state.fetched_ms is not None
    if not state.others:
        return state._replace(retry_at_ms=None), []
    begin_ms = state.timing.begin_ms
    is_new = now_ms - state.led_since_ms < state.timing.fetch_timeout_ms
    quiet = [
        voter for voter in state.others if voter not in state.fetched_ms or now_ms - state.fetched_ms[voter] >= begin_ms
    ]
    again_ms = now_ms + (state.timing.retry_ms if is_new else begin_ms)
    return state._replace(retry_at_ms=again_ms), [AskBegin(voter, state.epoch) for voter in quiet]


def check_quorum(state: State, now_ms: int, chance: Random) -> Stepped:
    """Resign if no majority fetches, because the other voters have elected another leader or are about to do so."""
    assert state.fetched_ms is not None
    since_ms = now_ms - state.timing.check_quorum_ms
    heard = sorted((state.fetched_ms.get(voter, state.led_since_ms) for voter in state.others), reverse=True)
    lasts_since_ms = heard[state.others_needed - 1]
    if lasts_since_ms > since_ms:
        return state._replace(deadline_ms=lasts_since_ms + state.timing.check_quorum_ms), []
    return resign(state, Resign(), now_ms, chance)


def resign(state: State, event: Resign, now_ms: int, chance: Random) -> Stepped:
    """Stop leading, and send the preferred successors to the other voters, the voter with the longest log first."""
    if state.synced is None:
        return state, []
    reached = state.synced
    successors = tuple(sorted(state.others, key=lambda voter: -reached[voter]))
    resigned = state.out_of_office()._replace(role=Role.RESIGNED, deadline_ms=random_timeout_ms(state, now_ms, chance))
    return resigned, [AskEnd(voter, state.epoch, successors) for voter in state.others]


def synced(state: State, event: Synced, now_ms: int, chance: Random) -> Stepped:
    """Record that more of the log is on this node's disk."""
    return _count(state, state.node_id, event.end, now_ms, chance)


def fetched(state: State, event: ReplicaFetched, now_ms: int, chance: Random) -> Stepped:
    """Record that a voter has every record below its fetch offset on disk. The offset may be lower than before, if the
    voter has lost records."""
    if state.fetched_ms is None or event.replica not in state.voters or event.replica == state.node_id:
        return state, []
    assert state.synced is not None
    heard = state._replace(fetched_ms={**state.fetched_ms, event.replica: now_ms})
    if event.end < state.synced.get(event.replica, 0):
        return heard._replace(synced={**state.synced, event.replica: event.end}), []
    return _count(heard, event.replica, event.end, now_ms, chance)


def _count(state: State, voter: int, end: int, now_ms: int, chance: Random) -> Stepped:
    if state.synced is None or voter not in state.synced or end <= state.synced[voter]:
        return state, []
    return _settle(state._replace(synced={**state.synced, voter: end}), now_ms, chance)


def _settle(state: State, now_ms: int, chance: Random) -> Stepped:
    """Raise the high watermark to the end of the records that a majority has on disk, if these include a record of the
    leader's epoch.

    A leader that was removed from the voters resigns once its removal has committed.
    """
    assert state.synced is not None
    agreed = sorted(state.synced.values(), reverse=True)[state.majority - 1]
    if agreed <= state.high_watermark or agreed <= state.epoch_start:
        return state, []
    counted = state._replace(high_watermark=agreed)
    if counted.is_voter or agreed < counted.voters_end:
        return counted, [Commit(agreed)]
    resigned, ends = resign(counted, Resign(), now_ms, chance)
    return resigned, [Commit(agreed), *ends]
