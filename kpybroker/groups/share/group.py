"""One share group (KIP-932): its members, their assignments, and its share partitions. No clocks, no records.

Several members may share a partition, so no member has to wait until another member revokes a partition: each member
adopts its target with its next heartbeat. Only partitions whose state the share coordinator has initialized are
assigned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.kind import Usage
from kpybroker.groups.ground.step import Step
from kpybroker.groups.ground.timers import Timer
from kpybroker.topics import TopicIdPartition

LEAVE, JOIN = -1, 0
"""Member epochs with a special meaning."""
FIRST_EPOCH = 1
NOTHING: frozenset[TopicIdPartition] = frozenset()


class TopicState(NamedTuple):
    """The share partitions of one topic that are being initialized, or are initialized."""

    name: str
    partitions: frozenset[int]


class ShareMember:
    """A member: its subscription, its assignment and its session."""

    __slots__ = (
        "assigned",
        "client_host",
        "client_id",
        "epoch",
        "member_id",
        "names",
        "previous_epoch",
        "rack_id",
        "session",
    )

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.rack_id: str | None = None
        self.client_id = ""
        self.client_host = ""
        self.names: tuple[str, ...] = ()
        self.epoch = self.previous_epoch = 0
        self.assigned = NOTHING
        self.session: Timer | None = None

    def said(self) -> tuple[Any, ...]:
        """The fields of the member metadata record."""
        return self.rack_id, self.client_id, self.client_host, self.names

    def update(self, rack_id: str | None, client_id: str, client_host: str, names: Iterable[str] | None) -> None:
        """Adopt the client's metadata. If `names` is None, the subscription does not change."""
        self.rack_id, self.client_id, self.client_host = rack_id, client_id, client_host
        if names is not None:
            self.names = tuple(dict.fromkeys(names))

    def copied(self) -> ShareMember:
        """A member with the same metadata, without an assignment and a session."""
        copied = ShareMember(self.member_id)
        copied.update(self.rack_id, self.client_id, self.client_host, self.names)
        return copied

    def hold(self, epoch: int, previous_epoch: int, assigned: frozenset[TopicIdPartition]) -> None:
        """Set the current assignment."""
        self.epoch, self.previous_epoch, self.assigned = epoch, previous_epoch, assigned

    def session_timer(self, fire: Callable[[Step], None]) -> Timer:
        """The timer of its session, created at the first call."""
        if self.session is None:
            self.session = Timer(fire)
        return self.session


class ShareGroup:
    """Members in the order in which they joined, their target assignments, and the share partitions by topic id."""

    __slots__ = (
        "assigned_at_ms",
        "assignment_epoch",
        "decided_at_ms",
        "deleting",
        "epoch",
        "group_id",
        "initialized",
        "initializing",
        "is_pending",
        "members",
        "metadata_hash",
        "seen",
        "targets",
    )

    may_expire = False
    """A share group has no offsets that could expire. It exists until it is deleted."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = self.assignment_epoch = FIRST_EPOCH
        self.metadata_hash = 0
        """The hash of the subscribed topics at the last bump of the epoch."""
        self.assigned_at_ms = 0
        """The time at which the target assignment was decided, by the wall clock, because it is stored."""
        self.decided_at_ms: int | None = None
        """The same time by the steady clock; None after a replay."""
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, frozenset[TopicIdPartition]] = {}
        self.initializing: dict[bytes, TopicState] = {}
        self.initialized: dict[bytes, TopicState] = {}
        self.deleting: dict[bytes, str] = {}
        """The topics whose share partitions are being deleted: topic id -> name."""
        self.is_pending = True
        """Whether there may be initialized partitions that no target assignment contains yet."""
        self.seen: Any = None
        """The Image in which this group last looked for new partitions of the subscribed topics; None: look again."""

    # -- questions ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """Kafka's name of the group's state."""
        return "Stable" if self.members else "Empty"

    def topics(self) -> frozenset[str]:
        """The topics that any member subscribes to."""
        return frozenset[str]().union(*({member.names for member in self.members.values()}))

    def subscribes(self, topic: str) -> bool:
        return topic in self.topics()

    def usage(self) -> Usage:
        """A share group commits no offsets. Offsets that a group of another kind committed under the same id remain."""
        return Usage(None, None)

    def check_delete(self) -> None:
        """Raises NON_EMPTY_GROUP."""
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")

    def check_delete_offsets(self) -> None:
        """Raises GROUP_ID_NOT_FOUND: OffsetDelete is for other groups."""
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is a share group.")

    def member(self, member_id: str) -> ShareMember:
        """Raises UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def assignable(self, partitions: Mapping[bytes, int]) -> dict[bytes, frozenset[int]]:
        """The initialized partitions of these topics (id -> number of partitions in use), by topic id."""
        return {
            topic: frozenset(index for index in state.partitions if index < partitions[topic])
            for topic, state in self.initialized.items()
            if topic in partitions
        }

    def has_unassigned(self, partitions: Mapping[bytes, int]) -> bool:
        """Whether initialized partitions of the subscribed topics (id -> number of partitions) are in no target
        assignment yet."""
        if not self.is_pending:
            return False
        wanted = {(topic, index) for topic, found in self.assignable(partitions).items() for index in found}
        return not wanted.issubset(frozenset[TopicIdPartition]().union(*self.targets.values()))

    def missing(self, partitions: Mapping[bytes, int], names: Mapping[bytes, str]) -> dict[bytes, TopicState]:
        """The share partitions of these topics (id -> number of partitions) whose initialization has not begun."""
        found = {}
        for topic, count in partitions.items():
            if topic in self.deleting:
                continue
            known = _partitions(self.initializing, topic) | _partitions(self.initialized, topic)
            if len(known) < count:
                found[topic] = TopicState(names[topic], frozenset(range(count)) - known)
        return found

    # -- changes --------------------------------------------------------------------------------------------------

    def bump(self, metadata_hash: int) -> None:
        """Begin the next group epoch, after a change of members, subscriptions or topics; the topics have this hash."""
        self.epoch += 1
        self.metadata_hash = metadata_hash

    def enter_epoch(self, epoch: int, metadata_hash: int) -> None:
        """Set the group epoch to a stored one."""
        self.epoch, self.metadata_hash = epoch, metadata_hash

    def assigned(self, epoch: int, wall_ms: int, now_ms: int | None) -> None:
        """Record that the target assignment of this epoch was decided at this time, by the wall clock and the steady
        clock."""
        self.assignment_epoch = epoch
        self.assigned_at_ms, self.decided_at_ms = wall_ms, now_ms
        self.is_pending = now_ms is None  # after a replay: more may have been initialized since then

    def decided(self, now_ms: int) -> None:
        """Set the time at which another coordinator decided the target assignment, by the steady clock."""
        self.decided_at_ms = now_ms

    def compared_with(self, image: Any) -> None:
        """Record that the group has looked for new partitions of the subscribed topics in this Image; None: the group
        must look again."""
        self.seen = image

    def remove(self, member: ShareMember) -> None:
        """Remove a member that has left."""
        if member.session is not None:
            member.session.cancel()
        del self.members[member.member_id]
        self.targets.pop(member.member_id, None)

    def initialize(self, topics: Mapping[bytes, TopicState]) -> None:
        """Record that these share partitions are being initialized."""
        for topic, state in topics.items():
            _add(self.initializing, topic, state)

    def initialization_ended(self, topic: bytes, partitions: Iterable[int], *, done: bool) -> bool:
        """Record that the initialization of share partitions succeeded (`done`) or failed. Returns whether the group
        changes."""
        state = self.initializing.get(topic)
        ended = frozenset(partitions) & (state.partitions if state is not None else frozenset())
        if state is None or not ended:
            return False
        _remove(self.initializing, topic, ended)
        if done:
            _add(self.initialized, topic, TopicState(state.name, ended))
            self.is_pending = True
        else:
            self.seen = None
        return True

    def delete(self, topic: bytes) -> tuple[int, ...]:
        """Record that the share partitions of a topic are being deleted, and return them."""
        states = [each.pop(topic) for each in (self.initializing, self.initialized) if topic in each]
        if states:
            self.deleting[topic] = states[0].name
        return tuple(sorted(frozenset[int]().union(*(state.partitions for state in states))))

    def deleted(self, topic: bytes) -> bool:
        """Record that the share partitions of a topic are deleted. Returns whether the group changes."""
        self.seen = None
        return self.deleting.pop(topic, None) is not None

    def drop(self, topic: bytes) -> bool:
        """Remove the share partitions of a deleted topic. Returns whether there were any."""
        known = [each.pop(topic, None) for each in (self.initializing, self.initialized)]
        return self.deleted(topic) or any(state is not None for state in known)


def _partitions(states: Mapping[bytes, TopicState], topic: bytes) -> frozenset[int]:
    state = states.get(topic)
    return frozenset() if state is None else state.partitions


def _add(states: dict[bytes, TopicState], topic: bytes, more: TopicState) -> None:
    states[topic] = TopicState(more.name, _partitions(states, topic) | more.partitions)


def _remove(states: dict[bytes, TopicState], topic: bytes, fewer: frozenset[int]) -> None:
    left = states[topic].partitions - fewer
    if left:
        states[topic] = states[topic]._replace(partitions=left)
    else:
        del states[topic]
