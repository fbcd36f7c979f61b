"""The types of the Raft function in `core`: a node's state, the events, and their effects (KIP-595, KIP-996)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

NOBODY: Final = -1
EPOCH_MAX: Final = 2**31 - 1
"""The largest int32, and so the last possible epoch: after it, no election is possible."""

LATE_MS: Final = 100
"""A timer that fires at least this late shows that the node was suspended."""
READING_MS: Final = 10
"""The time that a suspended node takes to read data from other nodes before it treats them as silent."""


class Voted(NamedTuple):
    """The contents of `quorum-state`, which must be on disk before the node does anything else in an epoch."""

    epoch: int = 0
    leader_id: int = NOBODY
    voted_id: int = NOBODY
    voted_directory: bytes = b""
    """The directory id of the candidate (KIP-853); empty if it was not sent."""


class Tail(NamedTuple):
    """The epoch of a log's last record (0 for an empty log), and the end offset of the log. A log with a greater tail
    is more complete."""

    epoch: int = 0
    end: int = 0


class Timeouts(NamedTuple):
    """The timeouts, from Kafka's controller.quorum.* settings with the same names."""

    election_timeout_ms: int = 1000
    election_backoff_max_ms: int = 1000
    fetch_timeout_ms: int = 2000

    @property
    def check_quorum_ms(self) -> int:
        """The time after which a leader without fetches from a majority resigns (with Kafka's factor)."""
        return self.fetch_timeout_ms * 3 // 2

    @property
    def retry_ms(self) -> int:
        """The time after which an election request without a response is sent again."""
        return max(self.election_timeout_ms // 5, 1)

    @property
    def begin_ms(self) -> int:
        """The interval at which a leader sends BeginQuorumEpoch to voters that do not fetch."""
        return max(self.fetch_timeout_ms // 2, 1)

    @property
    def spread_ms(self) -> int:
        """The interval over which nodes that lose their leader at the same time spread their elections."""
        return max(self.election_timeout_ms // 10, 1)


class Role(Enum):
    """The role of a node in its epoch. Observers are UNATTACHED or FOLLOWER."""

    UNATTACHED = "has no known leader, may have voted"
    FOLLOWER = "fetches from a leader"
    PROSPECTIVE = "sends pre-votes to learn whether it would be elected"
    CANDIDATE = "requests votes"
    LEADER = "leads"
    RESIGNED = "led this epoch and has resigned"


class State(NamedTuple):
    """One node's state. A leader's fields are None on all other nodes."""

    node_id: int
    voters: tuple[int, ...]
    """The latest voters in the node's log, committed or not; for kraft.version 0, the voters in the settings."""
    voted: Voted = Voted()
    tail: Tail = Tail()
    """The tail of the node's own log, including records that are not on disk yet. The driver updates it before each
    step."""
    timing: Timeouts = Timeouts()
    role: Role = Role.UNATTACHED
    answers: Mapping[int, bool] = {}
    """The votes of this election or pre-vote, by voter: granted or not."""
    has_fetched: bool = False
    """Whether the leader has responded to a fetch. A follower for which this is true refuses pre-votes (KIP-996)."""
    synced: Mapping[int, int] | None = None
    """On a leader: the end of each voter's log on disk, in this epoch."""
    fetched_ms: Mapping[int, int] | None = None
    """On a leader: the time of each voter's last fetch. Voters that have not fetched yet are missing."""
    led_since_ms: int = 0
    epoch_start: int = 0
    """On a leader: the offset at which its epoch begins. Nothing commits before a record of the epoch commits (Raft,
    5.4.2)."""
    high_watermark: int = 0
    deadline_ms: int | None = None
    """The time at which the timeout of the role ends; None if there is no timeout."""
    retry_at_ms: int | None = None
    """The time at which requests without a response are sent again."""
    voters_end: int = 0
    """The end offset of the batch or snapshot that contains `voters`. If the high watermark has reached it, they are
    committed."""
    is_stranger: bool = False
    """Whether the voter with this node's id has a different directory. If so, this node is an observer (KIP-853)."""
    is_leaving: bool = False
    """Whether this node is in the committed set of voters, or in a later set, but not in the latest one."""
    is_new: bool = False
    """Whether this node is a voter in the settings that started with an empty directory and has not caught up since.
    Before its directory was lost, it may have voted, and it may have acknowledged records that it no longer has."""

    @property
    def is_leader(self) -> bool:
        return self.synced is not None

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.voters and not self.is_stranger

    @property
    def may_stand(self) -> bool:
        """Whether this node may be a candidate. It may if it is a voter. It also may if it is being removed and the
        removal is not committed: no other node may have that record, and so no other node can be elected."""
        is_needed = self.is_leaving and self.voters_end > self.high_watermark
        return (self.is_voter or is_needed) and self.may_elect(self.tail)

    def may_elect(self, tail: Tail) -> bool:
        """Whether to grant a vote to a candidate whose log ends at `tail`.

        A voter that started with an empty disk votes only for a candidate with an empty log. If the candidate's log has
        records, the cluster existed before, and this node may have voted in it before it lost its disk.
        """
        return not self.is_new or tail == Tail()

    @property
    def others(self) -> tuple[int, ...]:
        """The voters besides this node."""
        return tuple(voter for voter in self.voters if voter != self.node_id)

    @property
    def others_needed(self) -> int:
        """The number of other voters that are needed for a majority, in addition to this node if it is a voter."""
        return self.majority - self.is_voter

    @property
    def told_high_watermark(self) -> int:
        """The high watermark for the replicas; -1 until this leader has committed a record of its epoch.

        Until then, its own may be lower than the one that a replica knows from the leader before. Apache Kafka ends its
        process when it is told a lower one.
        """
        return self.high_watermark if self.high_watermark > self.epoch_start else -1

    @property
    def may_change_voters(self) -> bool:
        """Whether the voters may be changed: this leader has committed a record of its epoch, and the last change of
        voters is committed. This ensures that the majorities before and after a change overlap."""
        return self.is_leader and self.voters_end <= self.told_high_watermark

    def out_of_office(self) -> State:
        """The state without the fields that belong to the current role."""
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
        """The leader of the epoch; -1 if it is unknown, or if this node was the leader and has resigned or restarted
        since."""
        leader = self.voted.leader_id
        return NOBODY if leader == self.node_id and not self.is_leader else leader

    @property
    def wake_ms(self) -> int | None:
        """The time at which the next TimerTick is due."""
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
    """A replica fetched from `end` in this epoch, and its log agrees with this node's. So it has every record below
    `end` on disk."""

    replica: int
    end: int


class VoteAsked(NamedTuple):
    """A candidate or prospective candidate requests a vote. `tail` is the tail of its log."""

    candidate: int
    epoch: int
    tail: Tail
    is_pre_vote: bool
    directory: bytes = b""


class VoteTold(NamedTuple):
    """A voter responded to a Vote request. `epoch` and `leader_id` are the voter's own."""

    voter: int
    epoch: int
    leader_id: int
    granted: bool
    is_pre_vote: bool


class LeaderTold(NamedTuple):
    """A node's response contained an epoch and its leader (NOBODY if unknown)."""

    epoch: int
    leader_id: int


class BeginAsked(NamedTuple):
    """A leader announces itself (BeginQuorumEpoch)."""

    leader_id: int
    epoch: int


class EndAsked(NamedTuple):
    """A leader resigns (EndQuorumEpoch) and lists its preferred successors, the best one first."""

    leader_id: int
    epoch: int
    successors: tuple[int, ...]


class Followed(NamedTuple):
    """A leader has responded to a fetch, and the logs agree up to the end of the shorter one."""

    leader_id: int
    epoch: int
    high_watermark: int


class LeaderGone(NamedTuple):
    """The leader's address refuses connections: its process has ended."""

    leader_id: int
    epoch: int


class Resign(NamedTuple):
    """This node stops; the voter with the longest log should become the leader."""


class VotersChanged(NamedTuple):
    """The voters in the log up to `end` have changed (KIP-853), because the log grew, was truncated or was replaced by
    a snapshot."""

    voters: tuple[int, ...]
    end: int
    is_stranger: bool = False
    is_leaving: bool = False


# Effects


class Persist(NamedTuple):
    """Write `quorum-state`, and sync it, before any other effect."""

    voted: Voted


class Lead(NamedTuple):
    """Start to lead: append the LeaderChange record of the epoch."""

    epoch: int
    granting: tuple[int, ...]


class Commit(NamedTuple):
    """Apply the records below `end`, the new high watermark."""

    end: int


class AskVote(NamedTuple):
    """Send a Vote request."""

    to: int
    epoch: int
    tail: Tail
    is_pre_vote: bool


class AskBegin(NamedTuple):
    """Send a BeginQuorumEpoch request."""

    to: int
    epoch: int


class AskEnd(NamedTuple):
    """Send an EndQuorumEpoch request."""

    to: int
    epoch: int
    successors: tuple[int, ...]


class CaughtUp(NamedTuple):
    """Note on disk that this voter is no longer new: it has every record that it may have acknowledged before, or the
    cluster itself is new."""


class AnswerVote(NamedTuple):
    """Respond to a Vote request. The epoch and the leader of the response are those of the state."""

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
