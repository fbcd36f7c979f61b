"""One streams group (KIP-1071): its topology, its members and their tasks. No clocks, no records.

The epochs are those of consumer groups: the group epoch is bumped when members, topology, topics or settings change;
the assignment epoch is the group epoch of the target assignment; the member epoch is the assignment epoch that a member
has reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import CommitOffsets
from kpybroker.groups.ground.kind import Usage
from kpybroker.groups.ground.step import Step
from kpybroker.groups.ground.timers import Timer
from kpybroker.groups.streams.configuration import ConfiguredTopology
from kpybroker.groups.streams.tasks import HeldTasks, Task, Tasks
from kpybroker.groups.streams.topology import Topology

LEAVE_STATIC, LEAVE, JOIN = -2, -1, 0
"""Member epochs with a special meaning."""
FIRST_EPOCH = 1
NOT_VALIDATED = -1
Endpoint = tuple[str, int]


class MemberState(IntEnum):
    """How far a member has reconciled its tasks with its target."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    """The member must revoke tasks, and has not confirmed that yet."""
    UNRELEASED_TASKS = 3
    """The member waits for tasks that other members have not revoked yet."""


class CurrentAssignment(NamedTuple):
    """The current assignment of a member: the StreamsGroupCurrentMemberAssignment record."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: HeldTasks = HeldTasks()
    revoking: HeldTasks = HeldTasks()


class MemberMetadata(NamedTuple):
    """The metadata that a client sends about itself, as in the StreamsGroupMemberMetadata record."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: Endpoint | None = None
    """Host and port of its interactive queries."""
    tags: Mapping[str, str] = {}


class StreamsMember:
    """A member: its metadata, its tasks and its timers."""

    __slots__ = ("current", "member_id", "metadata", "rebalance", "session")

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.metadata = MemberMetadata()
        self.current = CurrentAssignment()
        self.session: Timer | None = None
        self.rebalance: Timer | None = None
        """The time by which the member must have revoked its tasks."""

    def update(self, metadata: MemberMetadata) -> None:
        """Adopt the client's metadata."""
        self.metadata = metadata

    def is_at(self, epoch: int) -> bool:
        """Whether the member has reached the target assignment of this epoch."""
        return self.current.state is MemberState.STABLE and self.current.epoch == epoch

    def session_timer(self, fire: Callable[[Step], None]) -> Timer:
        """The timer of its session, created at the first call."""
        if self.session is None:
            self.session = Timer(fire)
        return self.session

    def rebalance_timer(self, fire: Callable[[Step], None]) -> Timer:
        """The timer of its revocation, created at the first call."""
        if self.rebalance is None:
            self.rebalance = Timer(fire)
        return self.rebalance

    def cancel_timers(self) -> None:
        for timer in (self.session, self.rebalance):
            if timer is not None:
                timer.cancel()


class StreamsGroup:
    """Members in the order in which they joined, their targets, and the owners of each task."""

    __slots__ = (
        "assigned_at_ms",
        "assignment_configs",
        "assignment_epoch",
        "configured",
        "decided_at_ms",
        "delay",
        "endpoint_epoch",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "owners",
        "seen",
        "shutdown_by",
        "targets",
        "topology",
        "validated_epoch",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = self.assignment_epoch = FIRST_EPOCH
        self.metadata_hash = 0
        """The hash of the topics of the topology at the last bump of the epoch."""
        self.validated_epoch = 0
        """The epoch of the topology for which all topics existed at the last bump of the epoch, else NOT_VALIDATED."""
        self.assignment_configs: Mapping[str, str] = {}
        """The settings of the assignor at the last bump of the epoch."""
        self.assigned_at_ms = 0
        """The time at which the target assignment was computed, by the wall clock, because it is stored."""
        self.decided_at_ms: int | None = None
        """The same time by the steady clock; None after a replay."""
        self.topology: Topology | None = None
        self.configured: ConfiguredTopology | None = None
        """The topology with the topics of `seen`; None after a replay."""
        self.seen: Any = None
        """The Image with which the topology was last compared."""
        self.members: dict[str, StreamsMember] = {}
        self.targets: dict[str, Tasks] = {}
        self.owners: tuple[dict[Task, dict[str, None]], ...] = ({}, {}, {})
        """By role (active, standby, warm-up): task -> the members that have the task, or may still have it."""
        self.delay: Timer | None = None
        """While it is set, the first assignment waits for more members."""
        self.endpoint_epoch = 0
        """Bumped when the tasks of a member with an endpoint change."""
        self.shutdown_by: str | None = None
        """The member that requested the shutdown of the whole application."""

    # -- questions ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """Kafka's name of the group's state."""
        if not self.members:
            return "Empty"
        if self.topology is None or self.topology.epoch != self.validated_epoch:
            return "NotReady"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        if all(member.is_at(self.assignment_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    @property
    def is_delayed(self) -> bool:
        """Whether the first assignment waits for more members."""
        return self.delay is not None and self.delay.at_ms is not None

    def member(self, member_id: str) -> StreamsMember:
        """Raises UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def processes(self, role: int, task: Task) -> list[str]:
        """The processes that have a task in a role, or may still have it."""
        return [self.members[member_id].metadata.process_id for member_id in self.owners[role].get(task, ())]

    @property
    def may_expire(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    def usage(self) -> Usage:
        """The source topics; empty if the group has no members."""
        sources = frozenset[str]() if self.topology is None else frozenset(self.topology.subtopology_of)
        return Usage(sources if self.members else frozenset(), None)

    def subscribes(self, topic: str) -> bool:
        return bool(self.members) and self.topology is not None and topic in self.topology.subtopology_of

    def check_delete(self) -> None:
        """Raises NON_EMPTY_GROUP."""
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")

    def check_delete_offsets(self) -> None:
        """Never raises: offsets of topics that the application does not read may be deleted at any time."""

    def check_commit(self, command: CommitOffsets) -> None:
        """Raises UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION, STALE_MEMBER_EPOCH; in a transaction ILLEGAL_GENERATION.

        An earlier member epoch is valid for tasks that the member has had since then.
        """
        member_id, epoch = command.member_id, command.generation
        in_transaction = command.transaction is not None
        if epoch < 0 and not self.members:
            return
        if in_transaction and epoch < 0 and not member_id and command.instance_id is None:
            return
        current = self.member(member_id).current
        if not in_transaction and not command.knows_group_id_not_found:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, "members of the streams protocol commit with version 9 or later"
            )
        if epoch == current.epoch:
            return
        if epoch > current.epoch or not self._had_since(current, command, epoch):
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION if in_transaction else ErrorCode.STALE_MEMBER_EPOCH,
                f"the member epoch is {epoch}, and is known to be {current.epoch}",
            )

    def _had_since(self, current: CurrentAssignment, command: CommitOffsets, epoch: int) -> bool:
        """Whether the member has had the tasks of all these partitions since this epoch."""
        subtopology_of = {} if self.topology is None else self.topology.subtopology_of
        for topic, _, partitions in command.topics:
            for each in partitions:
                task = (subtopology_of.get(topic, ""), each.partition)
                since = current.assigned.active.get(task, current.revoking.active.get(task))
                if topic not in subtopology_of or since is None or since > epoch:
                    return False
        return True

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Check that a member may read offsets; a request without a member id always may. Raises UNKNOWN_MEMBER_ID,
        STALE_MEMBER_EPOCH."""
        if member_id is None and epoch < 0:
            return
        known = self.member(member_id or "").current.epoch
        if epoch != known:
            raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH, f"the member epoch is {epoch}, and is known to be {known}")

    # -- changes --------------------------------------------------------------------------------------------------

    def adopt(self, topology: Topology) -> None:
        """Set the topology."""
        self.topology = topology

    def configure(self, found: ConfiguredTopology, image: Any) -> None:
        """Store the result of the comparison of the topology with the topics of this Image."""
        self.configured, self.seen = found, image

    def bump(self, metadata_hash: int, validated_epoch: int, assignment_configs: Mapping[str, str]) -> None:
        """Begin the next group epoch."""
        self.enter_epoch(self.epoch + 1, metadata_hash, validated_epoch, assignment_configs)

    def enter_epoch(
        self, epoch: int, metadata_hash: int, validated_epoch: int, assignment_configs: Mapping[str, str]
    ) -> None:
        """Enter a group epoch."""
        self.epoch, self.metadata_hash = epoch, metadata_hash
        self.validated_epoch, self.assignment_configs = validated_epoch, assignment_configs

    def assigned(self, epoch: int, wall_ms: int, now_ms: int | None) -> None:
        """Record that the target assignment of this epoch was computed at this time, by the wall clock and by the
        steady clock."""
        self.assignment_epoch = epoch
        self.assigned_at_ms, self.decided_at_ms = wall_ms, now_ms

    def decided(self, now_ms: int) -> None:
        """Set the time at which another coordinator computed the target assignment, by the steady clock."""
        self.decided_at_ms = now_ms

    def delay_timer(self, fire: Callable[[Step], None]) -> Timer:
        """The timer of the first assignment, created at the first call."""
        if self.delay is None:
            self.delay = Timer(fire)
        return self.delay

    def add(self, member: StreamsMember) -> None:
        self.members[member.member_id] = member

    def remove(self, member: StreamsMember) -> None:
        """Remove a member that has left. Its tasks can then be assigned to others."""
        member.cancel_timers()
        self.hold(member, CurrentAssignment())
        del self.members[member.member_id]
        self.targets.pop(member.member_id, None)
        if not self.members:
            self.shutdown_by = None

    def hold(self, member: StreamsMember, current: CurrentAssignment) -> None:
        """Set the current assignment of a member."""
        for role, tasks in _held(member.current):
            owners = self.owners[role].get(tasks, {})
            owners.pop(member.member_id, None)
            if not owners:
                self.owners[role].pop(tasks, None)
        member.current = current
        for role, tasks in _held(current):
            self.owners[role].setdefault(tasks, {})[member.member_id] = None

    def tasks_moved(self) -> None:
        """Record that the tasks of a member with an endpoint have changed."""
        self.endpoint_epoch += 1

    def shut_down(self, member_id: str) -> None:
        """Record that a member requests the shutdown of the application. Only the first such member is stored."""
        self.shutdown_by = self.shutdown_by or member_id

    def cancel_timers(self) -> None:
        for member in self.members.values():
            member.cancel_timers()
        if self.delay is not None:
            self.delay.cancel()


def _held(current: CurrentAssignment) -> Iterator[tuple[int, Task]]:
    """The tasks of an assignment, with the number of their role."""
    for held in (current.assigned, current.revoking):
        for role, tasks in enumerate(held):
            for task in tasks:
                yield role, task
