"""The words of the quorum's function: a node's state, what may happen to it, what it wants done (KIP-595, KIP-996)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

NOBODY: Final = -1
EPOCH_MAX: Final = 2**31 - 1
"""Epochs are int32: after this one there can be no election."""

LATE_MS: Final = 100
"""A timer that fires so much later than it was wanted says that this node was held up."""
READING_MS: Final = 10
"""How long a node that was held up reads what others have said meanwhile, before it decides that they are silent."""


class Voted(NamedTuple):
    """What must be on disk before anything else happens in an epoch: the contents of `quorum-state`."""

    epoch: int = 0
    leader_id: int = NOBODY
    voted_id: int = NOBODY
    voted_directory: bytes = b""
    """Of the candidate voted for (KIP-853); empty where it did not say."""


class Tail(NamedTuple):
    """Where a log ends, and the epoch of its last record (0 for an empty one): the greater one has more."""

    epoch: int = 0
    end: int = 0


class Timeouts(NamedTuple):
    """Kafka's controller.quorum.* settings of the same names."""

    election_timeout_ms: int = 1000
    election_backoff_max_ms: int = 1000
    fetch_timeout_ms: int = 2000

    @property
    def check_quorum_ms(self) -> int:
        """How long a leader keeps office without fetches from a majority (Kafka's factor)."""
        return self.fetch_timeout_ms * 3 // 2

    @property
    def retry_ms(self) -> int:
        """How long to wait before an unanswered request of an election is sent again."""
        return max(self.election_timeout_ms // 5, 1)

    @property
    def begin_ms(self) -> int:
        """How often a leader tells of itself those who do not fetch."""
        return max(self.fetch_timeout_ms // 2, 1)

    @property
    def spread_ms(self) -> int:
        """Over how long those who lose a leader at once spread their elections."""
        return max(self.election_timeout_ms // 10, 1)


class Role(Enum):
    """What a node is in its epoch. Observers are UNATTACHED or FOLLOWER."""

    UNATTACHED = "knows no leader, may have voted"
    FOLLOWER = "fetches from a leader"
    PROSPECTIVE = "asks whether it would be elected (pre-vote)"
    CANDIDATE = "asks for votes"
    LEADER = "leads"
    RESIGNED = "has led this epoch, and does not any more"


class State(NamedTuple):
    """One node's view. What a leader keeps is None for everybody else."""

    node_id: int
    voters: tuple[int, ...]
    """The latest ones in the node's log, committed or not; for kraft.version 0, those of the settings."""
    voted: Voted = Voted()
    tail: Tail = Tail()
    """Of the node's own log, with what is not on disk yet; the shell brings it up to date before each step."""
    timing: Timeouts = Timeouts()
    role: Role = Role.UNATTACHED
    answers: Mapping[int, bool] = {}
    """Of this round of asking, by voter: granted or not."""
    has_fetched: bool = False
    """A follower that has heard of its leader refuses pre-votes (KIP-996)."""
    synced: Mapping[int, int] | None = None
    """A leader's: up to where each voter has the log on disk, in this epoch."""
    fetched_ms: Mapping[int, int] | None = None
    """A leader's: when each voter last fetched; those who have not yet are missing."""
    led_since_ms: int = 0
    epoch_start: int = 0
    """Where the leader's own epoch begins: nothing commits by count before its first record has (Raft, 5.4.2)."""
    high_watermark: int = 0
    deadline_ms: int | None = None
    """When the role has lasted long enough; None where nothing has to be waited for."""
    retry_at_ms: int | None = None
    """When to send unanswered requests again."""
    voters_end: int = 0
    """Where the log ends that says who votes: below the high watermark, the voters are committed."""
    is_stranger: bool = False
    """The voter of this node's id has another directory: this node is an observer (KIP-853)."""
    is_leaving: bool = False
    """The voters that had committed, or some since, have this node among them, and the latest ones have not."""
    is_new: bool = False
    """One of several voters of the settings, on a directory that is empty, or was and has not caught up: it may have
    voted before that, and have forgotten for whom, and what it had on disk."""

    @property
    def is_leader(self) -> bool:
        return self.synced is not None

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.voters and not self.is_stranger

    @property
    def may_stand(self) -> bool:
        """Whether this node may be a candidate: it is a voter, or it is being removed and may be the only one with a
        log that has that change, so that nobody else can be elected."""
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
        """How many of the others make a majority, with this node if it votes."""
        return self.majority - self.is_voter

    @property
    def may_change_voters(self) -> bool:
        """This leader has committed in its epoch, and the last change of voters: majorities of then and now overlap."""
        return self.is_leader and self.high_watermark > self.epoch_start and self.voters_end <= self.high_watermark

    def out_of_office(self) -> State:
        """Without what belongs to a role that ends."""
        return self._replace(answers={}, has_fetched=False, synced=None, fetched_ms=None, retry_at_ms=None)

    @property
    def epoch(self) -> int:
        return self.voted.epoch

    @property
    def asks_for_votes(self) -> bool:
        """It stands for election, or asks whether it could win."""
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
    """The node has started; `voted` is what its disk said."""


class TimerTick(NamedTuple):
    """It is `wake_ms`, or later."""


class Synced(NamedTuple):
    """This node has its log on disk up to `end`."""

    end: int


class ReplicaFetched(NamedTuple):
    """A replica fetched from `end` on, in this epoch, and its log agrees with ours: it has all before on disk."""

    replica: int
    end: int


class VoteAsked(NamedTuple):
    """A candidate, or a prospective one, asks for a vote; `tail` is its log's."""

    candidate: int
    epoch: int
    tail: Tail
    is_pre_vote: bool
    directory: bytes = b""


class VoteTold(NamedTuple):
    """A voter's answer: its own epoch and leader with it."""

    voter: int
    epoch: int
    leader_id: int
    granted: bool
    is_pre_vote: bool


class LeaderTold(NamedTuple):
    """Somebody's answer says which epoch it is, and who leads it (NOBODY where unknown)."""

    epoch: int
    leader_id: int


class BeginAsked(NamedTuple):
    """A leader tells of itself (BeginQuorumEpoch)."""

    leader_id: int
    epoch: int


class EndAsked(NamedTuple):
    """A leader resigns (EndQuorumEpoch); whom it wishes to be elected, best first."""

    leader_id: int
    epoch: int
    successors: tuple[int, ...]


class Followed(NamedTuple):
    """A leader has answered a fetch, and the log agrees with its: up to the smaller of both ends it is the same."""

    leader_id: int
    epoch: int
    high_watermark: int


class LeaderGone(NamedTuple):
    """Nobody listens any more where the leader was: its process has ended (not merely silence)."""

    leader_id: int
    epoch: int


class Resign(NamedTuple):
    """This node stops: the voter with the longest log follows."""


class VotersChanged(NamedTuple):
    """The log says who votes, up to `end` (KIP-853): it has grown, was cut, or a snapshot has taken its place."""

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
    """This voter is new no more: it has all that any former self of it may have had, or the cluster is new, too."""


class AnswerVote(NamedTuple):
    """The answer to a Vote request; epoch and leader are those of the state."""

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
