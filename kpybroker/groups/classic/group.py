"""A group of the classic protocol: members, votes for a protocol, generations. It uses no clocks and no records.

Everything here is soft state. The state that must survive a change of coordinator is in the GroupMetadata record, which
is written when a generation's assignment is complete and when the group becomes empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.classic.subscription import subscribed_topics
from kpybroker.groups.ground.commands import CommitOffsets
from kpybroker.groups.ground.kind import Usage
from kpybroker.groups.ground.step import Step
from kpybroker.groups.ground.timers import Timer

CONSUMER = "consumer"
Protocols = Sequence[tuple[str, bytes]]


def named_once(protocols: Iterable[tuple[str, bytes]]) -> Protocols:
    """A member's protocols in its order of preference; if a name occurs twice, the first entry counts."""
    named: dict[str, bytes] = {}
    for name, metadata in protocols:
        named.setdefault(name, metadata)
    return tuple(named.items())


class GroupState(Enum):
    """The states of a group, with Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicMember:
    """A member of a group, with its parked requests."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join_ticket",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
        "sync_ticket",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        protocols: Protocols = (),
        join_ticket: Any = None,
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.protocols = protocols
        self.rebalance_timeout_ms = 0
        self.session_timeout_ms = 0
        self.assignment = b""
        self.is_new = True
        self.join_ticket = join_ticket
        self.sync_ticket: Any = None
        self.session: Timer | None = None

    def set_client(self, client_id: str, client_host: str) -> None:
        """Set the client of this static member, which another client has taken over."""
        self.client_id, self.client_host = client_id, client_host

    def set_timeouts(self, session_timeout_ms: int, rebalance_timeout_ms: int) -> None:
        """Set the timeouts. If the rebalance timeout is -1 (JoinGroup v0 has none), the session timeout is used for
        both."""
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms if rebalance_timeout_ms >= 0 else session_timeout_ms

    def assign(self, assignment: bytes) -> None:
        """Set the member's assignment in this generation."""
        self.assignment = assignment

    def take_sync(self) -> Any:
        """Remove and return the parked SyncGroup; None if there is none."""
        ticket, self.sync_ticket = self.sync_ticket, None
        return ticket

    def park_sync(self, ticket: Any) -> Any:
        """Park a SyncGroup until the leader's assignment arrives. Returns the parked SyncGroup that it replaces, or
        None."""
        previous, self.sync_ticket = self.sync_ticket, ticket
        return previous

    def joined(self) -> None:
        """Record that the member is part of a generation, and must send heartbeats from now on."""
        self.is_new = False

    def session_timer(self, fire: Callable[[Step], None]) -> Timer:
        """The timer of the member's session, created at the first call."""
        if self.session is None:
            self.session = Timer(fire)
        return self.session

    def metadata(self, protocol: str) -> bytes:
        """The member's metadata for one protocol."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    @property
    def parked(self) -> bool:
        return self.join_ticket is not None or self.sync_ticket is not None


class ClassicGroup:
    """Members in the order in which they joined, their common protocols, the leader and the generation."""

    __slots__ = (
        "_waiting",
        "first_wait_ends_ms",
        "generation",
        "group_id",
        "instances",
        "join_timer",
        "leader",
        "member_added",
        "members",
        "pending_join",
        "pending_sync",
        "previous_state",
        "protocol",
        "protocol_type",
        "state",
        "state_since_ms",
        "supported",
        "sync_timer",
    )

    def __init__(self, group_id: str, wall_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_since_ms: int | None = wall_ms
        """When the state began, by the wall clock, because the time is stored."""
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.instances: dict[str, str] = {}
        """The member ids of static members, by group.instance.id."""
        self.pending_join: dict[str, Timer] = {}
        """Member ids that were assigned (KIP-394) but have not joined yet."""
        self.pending_sync: set[str] = set()
        self.supported: dict[str, int] = {}
        """The number of members that support each protocol."""
        self.member_added = False
        """Whether a member joined while the first generation waited for more members."""
        self.first_wait_ends_ms = 0
        """The latest time at which the first generation begins."""
        self.join_timer: Timer | None = None
        self.sync_timer: Timer | None = None
        self._waiting = 0

    # -- queries --------------------------------------------------------------------------------------------------

    @property
    def all_joined(self) -> bool:
        return self._waiting == len(self.members) and not self.pending_join

    @property
    def waiting(self) -> int:
        """The number of members with a parked JoinGroup."""
        return self._waiting

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with this type and these protocols could be in the same generation as all other members."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        everybody = len(self.members)
        return self.protocol_type == protocol_type and any(
            self.supported.get(name, 0) == everybody for name, _ in protocols
        )

    def validate(self, member_id: str, instance_id: str | None) -> None:
        """Raises FENCED_INSTANCE_ID if another member has the instance id, and UNKNOWN_MEMBER_ID if there is no such
        member."""
        if instance_id is not None:
            owner = self.instances.get(instance_id)
            if owner is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id!r}")
            if owner != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"another member has the instance id {instance_id!r}")
        if member_id not in self.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "not a member of this group")

    def select_protocol(self) -> str:
        """The protocol that most members prefer among the protocols that all of them support; if votes are equal, the
        first one that a member voted for."""
        everybody = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next((name for name, _ in member.protocols if self.supported[name] == everybody), None)
            assert choice is not None, "JoinGroup refuses members without a common protocol"
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def topics(self) -> frozenset[str] | None:
        """The topics that the members of the current generation subscribe to; None if they are unknown."""
        if self.protocol_type != CONSUMER:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        return subscribed_topics(member.metadata(self.protocol) for member in self.members.values())

    def subscribes(self, topic: str) -> bool:
        topics = self.topics()
        return self.protocol_type == CONSUMER if topics is None else topic in topics

    @property
    def may_expire(self) -> bool:
        """Whether the group has no members and none are joining, so that it may be deleted once it has no offsets."""
        return self.state is GroupState.EMPTY and not self.pending_join

    def usage(self) -> Usage:
        """The subscribed topics of a stable group; none while it is empty or only has offsets."""
        if self.protocol_type is None:
            return Usage(frozenset(), None)
        if self.state is GroupState.EMPTY:
            return Usage(frozenset(), self.state_since_ms)
        return Usage(self.topics() if self.state is GroupState.STABLE else None, None)

    def check_delete(self) -> None:
        """Raises NON_EMPTY_GROUP if the group has members."""
        if self.members or self.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "the group has members")

    def check_delete_offsets(self) -> None:
        """Raises NON_EMPTY_GROUP if the group has members whose topics are unknown."""
        if self.state is not GroupState.EMPTY and self.protocol_type != CONSUMER:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "the topics that the members use are unknown")

    def check_commit(self, command: CommitOffsets) -> None:
        """Raises KafkaError if an OffsetCommit or TxnOffsetCommit must be refused.

        A transaction may commit during a rebalance, and without member id and generation, which the first versions of
        TxnOffsetCommit do not have.
        """
        if command.generation < 0 and self.state is GroupState.EMPTY:
            return
        if command.generation >= 0 or command.member_id or command.instance_id is not None:
            self.validate(command.member_id, command.instance_id)
            if command.generation != self.generation:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"the generation is {self.generation}")
        elif self.state is not GroupState.EMPTY and command.transaction is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has members, so only members may commit")
        if self.state is GroupState.COMPLETING_REBALANCE and command.transaction is None:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the generation has no assignment yet")

    # -- changes --------------------------------------------------------------------------------------------------

    def enter(self, state: GroupState, wall_ms: int) -> None:
        self.previous_state = self.state
        self.state = state
        self.state_since_ms = wall_ms

    def restore(
        self,
        protocol_type: str | None,
        protocol: str | None,
        generation: int,
        leader: str | None,
        since_ms: int | None,
    ) -> None:
        """Set the stored fields of the group after its members were added. A group with members is stable."""
        if self.members:
            self.state = GroupState.STABLE
        if leader in self.members:
            self.leader = leader
        self.protocol_type, self.protocol, self.generation = protocol_type, protocol, generation
        self.state_since_ms = since_ms

    def continue_from(self, generation: int, wall_ms: int) -> None:
        """Become stable in this generation, with the protocol that the members choose."""
        self.generation = generation
        self.protocol = self.select_protocol()
        self.enter(GroupState.STABLE, wall_ms)

    def begin_first_wait(self, ends_ms: int = 0) -> None:
        """Let the first generation wait for more members until `ends_ms`."""
        self.member_added = False
        self.first_wait_ends_ms = ends_ms

    def join_timer_for(self, fire: Callable[[Step], None]) -> Timer:
        """The timer of the generation's joins, which will call `fire`."""
        if self.join_timer is None:
            self.join_timer = Timer(fire)
        self.join_timer.then(fire)
        return self.join_timer

    def sync_timer_for(self, fire: Callable[[Step], None]) -> Timer:
        """The timer of the generation's SyncGroups, created at the first call."""
        if self.sync_timer is None:
            self.sync_timer = Timer(fire)
        return self.sync_timer

    def add_new(self, member: ClassicMember, protocol_type: str) -> None:
        """Add a member that was not in the group."""
        self.member_added = True
        self.add(member, protocol_type)

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        """Add a member. The first member becomes the leader and sets the protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._count(member.protocols, 1)
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        if member.join_ticket is not None:
            self._waiting += 1

    def remove(self, member_id: str) -> ClassicMember:
        member = self.members.pop(member_id)
        self._count(member.protocols, -1)
        if member.instance_id is not None:
            self.instances.pop(member.instance_id, None)
        if member.join_ticket is not None:
            self._waiting -= 1
        if member.session is not None:
            member.session.cancel()
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_sync.discard(member_id)
        return member

    def replace(self, member: ClassicMember, member_id: str) -> None:
        """Give a static member that has restarted a new id. It keeps its place and assignment."""
        del self.members[member.member_id]
        if self.leader == member.member_id:
            self.leader = member_id
        self.pending_sync.discard(member.member_id)
        member.member_id = member_id
        self.members[member_id] = member
        assert member.instance_id is not None
        self.instances[member.instance_id] = member_id

    def set_protocols(self, member: ClassicMember, protocols: Protocols) -> None:
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)

    def park_join(self, member: ClassicMember, ticket: Any) -> Any:
        """Park a JoinGroup until the generation begins. Returns the parked JoinGroup that it replaces, or None."""
        previous = member.join_ticket
        member.join_ticket = ticket
        if previous is None:
            self._waiting += 1
        return previous

    def take_join(self, member: ClassicMember) -> Any:
        """Remove and return the parked JoinGroup of a member; None if there is none."""
        ticket = member.join_ticket
        if ticket is not None:
            member.join_ticket = None
            self._waiting -= 1
        return ticket

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, else choose the first member that has joined. Returns False if none has."""
        if self.leader is None:
            return False
        if self.members[self.leader].join_ticket is not None:
            return True
        for member in self.members.values():
            if member.join_ticket is not None:
                self.leader = member.member_id
                return True
        return False

    def next_generation(self, wall_ms: int) -> None:
        self.generation = 0 if self.generation == 2**31 - 1 else self.generation + 1
        self.pending_sync.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.enter(GroupState.COMPLETING_REBALANCE, wall_ms)
        else:
            self.protocol = None
            self.enter(GroupState.EMPTY, wall_ms)

    def _count(self, protocols: Iterable[tuple[str, bytes]], by: int) -> None:
        for name, _ in protocols:
            count = self.supported.get(name, 0) + by
            if count:
                self.supported[name] = count
            else:
                del self.supported[name]
