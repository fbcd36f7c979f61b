"""A group of the consumer protocol (KIP-848). It uses no clocks and no records.

It has three kinds of epochs. The group epoch is bumped when members, subscriptions or topics change. The assignment
epoch is the group epoch of the target assignment. The member epoch is the assignment epoch that a member has reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import CommitOffsets
from kpybroker.groups.ground.kind import Usage
from kpybroker.groups.ground.step import Step
from kpybroker.groups.ground.timers import Timer
from kpybroker.topics import TopicIdPartition
from kpybroker.wire.stored.consumer_group import ClassicMemberMetadata

LEAVE, LEAVE_STATIC, JOIN = -1, -2, 0
"""Member epochs with a special meaning."""
FIRST_EPOCH = 1
NOTHING: frozenset[TopicIdPartition] = frozenset()


class MemberState(IntEnum):
    """How far a member has reconciled its assignment with its target."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """The member must revoke partitions, and has not yet confirmed this."""
    UNRELEASED_PARTITIONS = 2
    """The member waits for partitions that other members have not yet revoked."""


class CurrentAssignment(NamedTuple):
    """The current assignment of a member: the ConsumerGroupCurrentMemberAssignment record."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Mapping[TopicIdPartition, int] = {}
    """The epoch in which the member received each partition. The member may commit with this epoch or a later one."""
    revoking: Mapping[TopicIdPartition, int] = {}
    """Partitions that the member must revoke and has not yet revoked."""


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matched when it was last evaluated."""

    topics: frozenset[str]
    version: int
    """The offset of the metadata on which the expression was evaluated."""
    timestamp_ms: int


class ConsumerMember:
    """A member: its subscription, its assignment and its timers."""

    __slots__ = (
        "classic",
        "client_host",
        "client_id",
        "current",
        "instance_id",
        "member_id",
        "names",
        "rack_id",
        "rebalance",
        "rebalance_timeout_ms",
        "regex",
        "server_assignor",
        "session",
        "sync_wait",
    )

    def __init__(
        self, member_id: str, instance_id: str | None = None, current: CurrentAssignment | None = None
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.rack_id: str | None = None
        self.client_id = ""
        self.client_host = ""
        self.names: tuple[str, ...] = ()
        self.regex = ""
        self.rebalance_timeout_ms = -1
        self.server_assignor: str | None = None
        self.classic: ClassicMemberMetadata | None = None
        """Set if the member uses the classic protocol: during a migration, a group has members of both."""
        self.current = current or CurrentAssignment()
        self.session: Timer | None = None
        self.rebalance: Timer | None = None
        """The deadline by which the member must have revoked its partitions."""
        self.sync_wait: Timer | None = None
        """For a classic member: the deadline of its SyncGroup."""

    def subscribe(self, names: Iterable[str] | None, regex: str | None) -> None:
        """Subscribe to topics. None leaves the names or the regular expression unchanged."""
        if names is not None:
            self.names = tuple(names)
        if regex is not None:
            self.regex = regex

    def update(
        self,
        client_id: str,
        client_host: str,
        rack_id: str | None,
        rebalance_timeout_ms: int,
        server_assignor: str | None,
    ) -> None:
        """Set the fields that the client sends about itself, except its subscription."""
        self.client_id, self.client_host, self.rack_id = client_id, client_host, rack_id
        self.rebalance_timeout_ms, self.server_assignor = rebalance_timeout_ms, server_assignor

    def copied(self) -> ConsumerMember:
        """A copy without timers."""
        copied = ConsumerMember(self.member_id, self.instance_id, self.current)
        copied.update(self.client_id, self.client_host, self.rack_id, self.rebalance_timeout_ms, self.server_assignor)
        copied.subscribe(self.names, self.regex)
        copied.use_classic(self.classic)
        return copied

    def use_classic(self, metadata: ClassicMemberMetadata | None) -> None:
        """Switch the member to the classic protocol, or, with None, to the consumer protocol."""
        self.classic = metadata

    def session_timer(self, fire: Callable[[Step], None]) -> Timer:
        """The timer of the member's session, created at the first call."""
        if self.session is None:
            self.session = Timer(fire)
        return self.session

    def rebalance_timer(self, fire: Callable[[Step], None]) -> Timer:
        """The timer of the member's revocation, created at the first call."""
        if self.rebalance is None:
            self.rebalance = Timer(fire)
        return self.rebalance

    def sync_timer(self, fire: Callable[[Step], None]) -> Timer:
        """The timer of the member's SyncGroup, created at the first call."""
        if self.sync_wait is None:
            self.sync_wait = Timer(fire)
        return self.sync_wait

    def replaced_by(self, member_id: str) -> ConsumerMember:
        """A copy of this static member with another id and the same partitions, whose epochs start again at 0."""
        current = CurrentAssignment(assigned=dict.fromkeys(self.current.assigned, 0))
        member = ConsumerMember(member_id, self.instance_id, current)
        member.update(self.client_id, self.client_host, self.rack_id, self.rebalance_timeout_ms, self.server_assignor)
        member.names, member.regex, member.classic = self.names, self.regex, self.classic
        return member

    def said(self) -> tuple[Any, ...]:
        """The fields of the member metadata record."""
        return (
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.names,
            self.regex,
            self.rebalance_timeout_ms,
            self.server_assignor,
            self.classic,
        )

    def cancel_timers(self) -> None:
        for timer in (self.session, self.rebalance, self.sync_wait):
            if timer is not None:
                timer.cancel()


class ConsumerGroup:
    """Members in the order in which they joined, their target assignments, and the owner of each partition."""

    __slots__ = (
        "assigned_at_ms",
        "assignment_epoch",
        "decided_at_ms",
        "epoch",
        "group_id",
        "instances",
        "members",
        "metadata_hash",
        "owners",
        "resolved",
        "resolved_at_ms",
        "resolving",
        "seen",
        "targets",
        "tried",
        "tried_at_ms",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        """The hash of the subscribed topics at the last bump of the epoch."""
        self.assignment_epoch = FIRST_EPOCH
        self.assigned_at_ms = 0
        """The time of the target assignment, by the wall clock, because it is stored."""
        self.decided_at_ms: int | None = None
        """The same time by the steady clock; None after a replay."""
        self.members: dict[str, ConsumerMember] = {}
        self.instances: dict[str, str] = {}
        """The member ids of static members, by group.instance.id."""
        self.targets: dict[str, frozenset[TopicIdPartition]] = {}
        self.owners: dict[TopicIdPartition, str] = {}
        """The member that owns each partition, or may still own it."""
        self.resolved: dict[str, ResolvedRegex] = {}
        """The topics that each regular expression matched."""
        self.resolved_at_ms: int | None = None
        """The time of the last changed result, by the steady clock; None after a replay."""
        self.seen: Any = None
        """The Image with which the metadata hash was last compared."""
        self.tried: Any = None
        """The topics on which the regular expressions were last evaluated."""
        self.tried_at_ms: int | None = None
        """The time of the last evaluation, by the steady clock; None after a replay."""
        self.resolving: Timer | None = None

    # -- queries --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """Kafka's name of the group's state."""
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        for member in self.members.values():
            current = member.current
            if current.state is not MemberState.STABLE or current.epoch != self.assignment_epoch:
                return "Reconciling"
        return "Stable"

    @property
    def all_classic(self) -> bool:
        """Whether the group has members, and all of them use the classic protocol."""
        return bool(self.members) and all(member.classic is not None for member in self.members.values())

    def wanted(self, member: ConsumerMember) -> frozenset[str]:
        """The topics that a member subscribes to: by name, and by the last result of its regular expression."""
        found = self.resolved.get(member.regex) if member.regex else None
        return frozenset(member.names) if found is None else found.topics.union(member.names)

    def topics(self) -> frozenset[str]:
        """All topics to which at least one member subscribes."""
        each = {(member.names, member.regex): member for member in self.members.values()}
        return frozenset[str]().union(*(self.wanted(member) for member in each.values()))

    def subscribes(self, topic: str) -> bool:
        return topic in self.topics()

    def regexes(self) -> Iterator[str]:
        return iter(dict.fromkeys(member.regex for member in self.members.values() if member.regex))

    def member(self, member_id: str) -> ConsumerMember:
        """The member with this id. Raises UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def check_instance(self, member_id: str, instance_id: str) -> ConsumerMember:
        """The static member. Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member has its instance id
        now."""
        owner = self.instances.get(instance_id)
        if owner is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if owner != member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {owner}.",
            )
        return self.members[owner]

    @property
    def may_expire(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    def usage(self) -> Usage:
        """The subscribed topics."""
        return Usage(self.topics(), None)

    def check_delete(self) -> None:
        """Raises NON_EMPTY_GROUP if the group has members."""
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "the group has members")

    def check_delete_offsets(self) -> None:
        """Never raises: offsets of topics to which no member subscribes may be deleted at any time."""

    def check_commit(self, command: CommitOffsets) -> None:
        """Raises KafkaError if an OffsetCommit or TxnOffsetCommit must be refused."""
        places = [(topic_id, each.partition) for _, topic_id, partitions in command.topics for each in partitions]
        member_id, epoch = command.member_id, command.generation
        if command.transaction is None:
            self._check_epoch(member_id, epoch, places, knows_epochs=command.knows_group_id_not_found)
        elif epoch >= 0 or member_id or command.instance_id is not None:
            try:
                self._check_epoch(member_id, epoch, places, knows_epochs=True)
            except KafkaError as refusal:
                if refusal.code != ErrorCode.STALE_MEMBER_EPOCH:
                    raise
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION, refusal.message) from refusal

    def _check_epoch(
        self, member_id: str, epoch: int, places: Sequence[TopicIdPartition], *, knows_epochs: bool
    ) -> None:
        """Raises UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION, ILLEGAL_GENERATION, STALE_MEMBER_EPOCH.

        An earlier member epoch is valid for partitions that the member has owned since that epoch (KIP-1251).
        """
        if epoch < 0 and not self.members:
            return
        member = self.member(member_id)
        current = member.current
        if member.classic is not None:
            self._check_generation(member, epoch)
            return
        if not knows_epochs:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, "members of the consumer protocol commit with version 9 or later"
            )
        if epoch == current.epoch:
            return
        owned_since = (current.assigned.get(each, current.revoking.get(each)) for each in places)
        if epoch < 0 or epoch > current.epoch or any(since is None or since > epoch for since in owned_since):
            raise self._stale(member, epoch)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Check that a member may read offsets. A request without a member id is always allowed. Raises the same errors
        as `check_commit`."""
        if member_id is None and epoch < 0:
            return
        member = self.member(member_id or "")
        if member.classic is not None:
            self._check_generation(member, epoch)
        elif epoch != member.current.epoch:
            raise self._stale(member, epoch)

    @staticmethod
    def _check_generation(member: ConsumerMember, generation: int) -> None:
        if generation != member.current.epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"the generation is {member.current.epoch}")

    @staticmethod
    def _stale(member: ConsumerMember, epoch: int) -> KafkaError:
        return KafkaError(
            ErrorCode.STALE_MEMBER_EPOCH, f"the member epoch is {epoch}, but should be {member.current.epoch}"
        )

    # -- changes --------------------------------------------------------------------------------------------------

    def bump(self, metadata_hash: int) -> None:
        """Begin the next group epoch, after a change of members, subscriptions or topics. `metadata_hash` is the hash
        of the topics."""
        self.epoch += 1
        self.metadata_hash = metadata_hash

    def enter_epoch(self, epoch: int, metadata_hash: int) -> None:
        """Set the group epoch and the hash from a record."""
        self.epoch, self.metadata_hash = epoch, metadata_hash

    def assigned(self, epoch: int, wall_ms: int, now_ms: int | None) -> None:
        """Set the epoch of the target assignment, and its time by the wall clock and by the steady clock."""
        self.assignment_epoch = epoch
        self.assigned_at_ms, self.decided_at_ms = wall_ms, now_ms

    def continue_from(self, generation: int) -> None:
        """Set the epochs to a generation of the classic protocol."""
        self.epoch = self.assignment_epoch = generation

    def decided(self, now_ms: int) -> None:
        """Set the time, by the steady clock, of a target assignment that another coordinator computed."""
        self.decided_at_ms = now_ms

    def compared_with(self, image: Any) -> None:
        """Record that the metadata hash was compared with this Image."""
        self.seen = image

    def tried_on(self, topics: Any, at_ms: int | None) -> None:
        """Record that the regular expressions were evaluated on these topics at this time by the steady clock."""
        self.tried, self.tried_at_ms = topics, at_ms

    def resolving_timer(self, fire: Callable[[Step], None]) -> Timer:
        """The timer of the regular expressions, created at the first call."""
        if self.resolving is None:
            self.resolving = Timer(fire)
        return self.resolving

    def resolve(self, regex: str, resolved: ResolvedRegex, now_ms: int) -> None:
        """Set the topics that a regular expression matches, after they have changed."""
        self.resolved[regex] = resolved
        self.resolved_at_ms = now_ms

    def add(self, member: ConsumerMember) -> None:
        known = self.members.get(member.member_id)
        if known is not None:
            self._release_instance(known)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        self.hold(member, member.current)

    def remove(self, member: ConsumerMember) -> None:
        member.cancel_timers()
        self.hold(member, CurrentAssignment())
        del self.members[member.member_id]
        self.targets.pop(member.member_id, None)
        self._release_instance(member)

    def name_instance(self, member: ConsumerMember, instance_id: str) -> None:
        """Set a member's instance id. It may replace another instance id."""
        if member.member_id in self.members:
            self._release_instance(member)
            self.instances[instance_id] = member.member_id
        member.instance_id = instance_id

    def _release_instance(self, member: ConsumerMember) -> None:
        if member.instance_id is not None and self.instances.get(member.instance_id) == member.member_id:
            del self.instances[member.instance_id]

    def hold(self, member: ConsumerMember, current: CurrentAssignment) -> None:
        """Set a member's current assignment."""
        for place in (*member.current.assigned, *member.current.revoking):
            if self.owners.get(place) == member.member_id:
                del self.owners[place]
        member.current = current
        for place in (*current.assigned, *current.revoking):
            self.owners[place] = member.member_id

    def is_free(self, place: TopicIdPartition, member: ConsumerMember) -> bool:
        """Whether no other member owns the partition."""
        return self.owners.get(place, member.member_id) == member.member_id
