"""The types of Raft's function: a node's state, the events that it reacts to, and their effects (KIP-595, KIP-996)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

NOBODY: Final = -1
EPOCH_MAX: Final = 2**31 - 1
"""Epochs are int32: after this one, no election is possible."""

LATE_MS: Final = 100
"""If a timer fires at least this late, the node was suspended."""
READING_MS: Final = 10
"""For how long a node that was suspended reads what other nodes have sent, before it considers them silent."""


class Voted(NamedTuple):
    """The contents of `quorum-state`, which must be on disk before anything else happens in an epoch."""

    epoch: int = 0
    leader_id: int = NOBODY
    voted_id: int = NOBODY
    voted_directory: bytes = b""
    """The directory id of the candidate (KIP-853); empty if it was not sent."""


class Tail(NamedTuple):
    """Where a log ends, and the epoch of its last record (0 for an empty log). The log with the greater tail is more
    complete."""

    epoch: int = 0
    end: int = 0


class Timeouts(NamedTuple):
    """Kafka's controller.quorum.* settings of the same names."""

    election_timeout_ms: int = 1000
    election_backoff_max_ms: int = 1000
    fetch_timeout_ms: int = 2000

    @property
    def check_quorum_ms(self) -> int:
        """How long a leader stays leader without fetches from a majority (Kafka's factor)."""
        return self.fetch_timeout_ms * 3 // 2

    @property
    def retry_ms(self) -> int:
        """How long to wait before an unanswered election request is sent again."""
        return max(self.election_timeout_ms // 5, 1)

    @property
    def begin_ms(self) -> int:
        """How often a leader sends BeginQuorumEpoch to voters that do not fetch."""
        return max(self.fetch_timeout_ms // 2, 1)

    @property
    def spread_ms(self) -> int:
        """The interval over which nodes that lose their leader at once spread their elections."""
        return max(self.election_timeout_ms // 10, 1)


class Role(Enum):
    """The role of a node in its epoch. Observers are UNATTACHED or FOLLOWER."""

    UNATTACHED = "knows no leader, may have voted"
    FOLLOWER = "fetches from a leader"
    PROSPECTIVE = "asks whether it would be elected (pre-vote)"
    CANDIDATE = "asks for votes"
    LEADER = "leads"
    RESIGNED = "led this epoch and has resigned"


class State(NamedTuple):
    """One node's state. A leader's fields are None on all other nodes."""

    node_id: int
    voters: tuple[int, ...]
    """The latest voters in the node's log, committed or not; for kraft.version 0, those of the settings."""
    voted: Voted = Voted()
    tail: Tail = Tail()
    """The tail of the node's own log, including what is not on disk yet; the driver updates it before each step."""
    timing: Timeouts = Timeouts()
    role: Role = Role.UNATTACHED
    answers: Mapping[int, bool] = {}
    """The votes of this election or pre-vote, by voter: granted or not."""
    has_fetched: bool = False
    """Whether the leader has answered a fetch; such a follower refuses pre-votes (KIP-996)."""
    synced: Mapping[int, int] | None = None
    """On a leader: the end of each voter's log on disk, in this epoch."""
    fetched_ms: Mapping[int, int] | None = None
    """On a leader: when each voter last fetched; voters that have not fetched yet are missing."""
    led_since_ms: int = 0
    epoch_start: int = 0
    """Where the leader's own epoch begins: nothing commits before its first record has (Raft, 5.4.2)."""
    high_watermark: int = 0
    deadline_ms: int | None = None
    """When the role's timeout ends; None for no timeout."""
    retry_at_ms: int | None = None
    """When to send unanswered requests again."""
    voters_end: int = 0
    """The end of the log up to which `voters` is valid: below the high watermark, the voters are committed."""
    is_stranger: bool = False
    """Whether the voter with this node's id has another directory; this node is then an observer (KIP-853)."""
    is_leaving: bool = False
    """Whether this node is among the committed voters, or some later ones, but not among the latest voters."""
    is_new: bool = False
    """Whether this is a voter of the settings that started with an empty directory and has not caught up since: it may
    have voted before the directory was lost, and may have acknowledged records that it no longer has."""

    @property
    def is_leader(self) -> bool:
        return self.synced is not None

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.voters and not self.is_stranger

    @property
    def may_stand(self) -> bool:
        """Whether this node may be a candidate: it is a voter; or it is being removed, and may be the only one whose
        log has that change, so that no other node can be elected."""
        is_needed = self.is_leaving and self.voters_end > self.high_watermark
        return (self.is_voter or is_needed) and self.may_elect(self.tail)

    def may_elect(self, tail: Tail) -> bool:
        """Whether to grant a vote to a candidate whose log ends at `tail`.

        A voter on an empty disk grants it to an empty log only: a log with records means an existing cluster, in which
        this node may already have voted before it lost its disk.
        """
        return not self.is_new or tail == Tail()

    @property
    def others(self) -> tuple[int, ...]:
        """The voters besides this node."""
        return tuple(voter for voter in self.voters if voter != self.node_id)

    @property
    def others_needed(self) -> int:
        """How many of the other voters are needed for a majority, which includes this node if it votes."""
        return self.majority - self.is_voter

    @property
    def may_change_voters(self) -> bool:
        """Whether this leader has committed a record in its epoch, and the last change of voters: the majorities before
        and after then overlap."""
        return self.is_leader and self.high_watermark > self.epoch_start and self.voters_end <= self.high_watermark

    def out_of_office(self) -> State:
        """The state without the fields of a role that ends."""
        return self._replace(answers={}, has_fetched=False, synced=None, fetched_ms=None, retry_at_ms=None)

    @property
    def epoch(self) -> int:
        return self.voted.epoch

    @property
    def asks_for_votes(self) -> bool:
        """Whether this node is a candidate or prospective candidate."""
        return self.role in (Role.PROSPECTIVE, Role.CANDIDATE)

    @property
    def leader_id(self) -> int:
        """The leader of the epoch; -1 on a node that led it and has resigned or restarted since."""
        leader = self.voted.leader_id
        return NOBODY if leader == self.node_id and not self.is_leader else leader

    @property
    def wake_ms(self) -> int | None:
        """When the next tick is due."""
        if self.deadline_ms is None or self.retry_at_ms is None:
            return self.deadline_ms if self.retry_at_ms is None else self.retry_at_ms
        return min(self.deadline_ms, self.retry_at_ms)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1


# Events


class Start(NamedTuple):
    """The node has started; `voted` was read from its disk."""


class TimerTick(NamedTuple):
    """The time is `wake_ms` or later."""


class Synced(NamedTuple):
    """This node's log is on disk up to `end`."""

    end: int


class ReplicaFetched(NamedTuple):
    """A replica fetched from `end` in this epoch, and its log agrees with ours: it has every record below `end` on
    disk."""

    replica: int
    end: int


class VoteAsked(NamedTuple):
    """A candidate or prospective candidate asks for a vote; `tail` is that of its log."""

    candidate: int
    epoch: int
    tail: Tail
    is_pre_vote: bool
    directory: bytes = b""


class VoteTold(NamedTuple):
    """A voter's response, with its own epoch and leader."""

    voter: int
    epoch: int
    leader_id: int
    granted: bool
    is_pre_vote: bool


class LeaderTold(NamedTuple):
    """A node's response has an epoch and its leader (NOBODY if unknown)."""

    epoch: int
    leader_id: int


class BeginAsked(NamedTuple):
    """A leader announces itself (BeginQuorumEpoch)."""

    leader_id: int
    epoch: int


class EndAsked(NamedTuple):
    """A leader resigns (EndQuorumEpoch), with its preferred successors, best first."""

    leader_id: int
    epoch: int
    successors: tuple[int, ...]


class Followed(NamedTuple):
    """A leader has answered a fetch, and the logs agree up to the end of the shorter one."""

    leader_id: int
    epoch: int
    high_watermark: int


class LeaderGone(NamedTuple):
    """The leader's address refuses connections: its process has ended."""

    leader_id: int
    epoch: int


class Resign(NamedTuple):
    """This node stops: the voter with the longest log should follow."""


class VotersChanged(NamedTuple):
    """The voters in the log, up to `end`, have changed (KIP-853): it grew, was truncated, or a snapshot replaced it."""

    voters: tuple[int, ...]
    end: int
    is_stranger: bool = False
    is_leaving: bool = False


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


class AskVote(NamedTuple):
    """Send Vote."""

    to: int
    epoch: int
    tail: Tail
    is_pre_vote: bool


class AskBegin(NamedTuple):
    """Send BeginQuorumEpoch."""

    to: int
    epoch: int


class AskEnd(NamedTuple):
    """Send EndQuorumEpoch."""

    to: int
    epoch: int
    successors: tuple[int, ...]


class CaughtUp(NamedTuple):
    """This voter is no longer new: it has every record that it may have acknowledged before, or the cluster is new,
    too."""


class AnswerVote(NamedTuple):
    """The response to a Vote request; epoch and leader are those of the state."""

    granted: bool


Event = (
    Start
    | TimerTick
    | Synced
    | ReplicaFetched
    | VoteAsked
    | VoteTold
    | LeaderTold
    | BeginAsked
    | EndAsked
    | Followed
    | LeaderGone
    | Resign
    | VotersChanged
)
Effect = Persist | Lead | Commit | AskVote | AskBegin | AskEnd | CaughtUp | AnswerVote
