"""Raft as a function (KIP-595): what a node of the quorum does next, without clock, disk or network.

`step(state, event, now_ms, chance)` gives the next state and the effects that the shell carries out in their order:
what persists comes first. One voter elects itself; epochs, votes and the ends that voters have on disk are shaped for
many.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final, NamedTuple

NOBODY: Final = -1
ELECTION_TIMEOUT_MS = 1000
"""Kafka's controller.quorum.election.timeout.ms."""


class Voted(NamedTuple):
    """What must be on disk before anything else happens in an epoch: the contents of `quorum-state`."""

    epoch: int = 0
    leader_id: int = NOBODY
    voted_id: int = NOBODY


class State(NamedTuple):
    """One node's view. `synced` says up to where each voter has the log on disk; it counts while this node leads."""

    node_id: int
    voters: tuple[int, ...]
    voted: Voted = Voted()
    votes: tuple[int, ...] = ()
    synced: Mapping[int, int] | None = None
    """None unless this node leads."""
    epoch_start: int = 0
    """Where the leader's own epoch begins: nothing commits by count before its first record has (Raft, 5.4.2)."""
    high_watermark: int = 0
    deadline_ms: int | None = None
    """When an ElectionTimeout is due; None where nothing has to be waited for."""

    @property
    def is_leader(self) -> bool:
        return self.synced is not None


# Events


class ElectionTimeout(NamedTuple):
    """Nobody led for too long, or the node has just started. `end` is where its log ends."""

    end: int


class Synced(NamedTuple):
    """A voter has the log on disk up to `end`."""

    voter: int
    end: int


# Effects


class Persist(NamedTuple):
    """Write `quorum-state`, and sync it, before anything below happens."""

    voted: Voted


class Lead(NamedTuple):
    """This node leads: append the LeaderChange record of the epoch."""

    epoch: int
    granting: tuple[int, ...]


class Commit(NamedTuple):
    """The high watermark has risen to `end`."""

    end: int


Event = ElectionTimeout | Synced
Effect = Persist | Lead | Commit


def step(state: State, event: Event, now_ms: int, chance: Random) -> tuple[State, list[Effect]]:
    """What happens next. Never fails: an event that does not apply changes nothing.

    now_ms is only compared with deadlines given out here; chance spreads the deadlines of rival candidates.
    """
    if isinstance(event, ElectionTimeout):
        return _elect(state, event.end, now_ms, chance)
    return _count(state, event)


def _elect(state: State, end: int, now_ms: int, chance: Random) -> tuple[State, list[Effect]]:
    """Vote for oneself in a new epoch; where one's own vote is a majority, lead at once."""
    if state.node_id not in state.voters or state.is_leader:
        return state, []
    epoch = state.voted.epoch + 1
    votes = (state.node_id,)
    if len(votes) <= len(state.voters) // 2:
        again_ms = now_ms + ELECTION_TIMEOUT_MS + chance.randrange(ELECTION_TIMEOUT_MS)
        voted = Voted(epoch, NOBODY, state.node_id)
        return state._replace(voted=voted, votes=votes, deadline_ms=again_ms), [Persist(voted)]
    voted = Voted(epoch, state.node_id, NOBODY)  # the vote and its success are one write
    leader = state._replace(
        voted=voted,
        votes=votes,
        synced=dict.fromkeys(state.voters, 0),
        epoch_start=end,
        deadline_ms=None,
    )
    return leader, [Persist(voted), Lead(epoch, votes)]


def _count(state: State, event: Synced) -> tuple[State, list[Effect]]:
    """The high watermark is what a majority has on disk, once that reaches into the leader's own epoch."""
    if state.synced is None or event.voter not in state.synced:
        return state, []
    synced = {**state.synced, event.voter: max(event.end, state.synced[event.voter])}
    ends = sorted(synced.values(), reverse=True)
    agreed = ends[len(ends) // 2]
    counted = state._replace(synced=synced)
    if agreed <= state.high_watermark or agreed <= state.epoch_start:
        return counted, []
    return counted._replace(high_watermark=agreed), [Commit(agreed)]
