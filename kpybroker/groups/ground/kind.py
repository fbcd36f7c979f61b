"""The interface of a kind of group. Each group protocol has one folder, and one object for its groups.

The machine handles offsets, time and the log. It delegates everything else to the kinds that `kinds.py` registers: they
read records, handle commands, and check requests for their groups.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import CommitOffsets, FetchOffsets, Heartbeat, Join, Leave, Sync
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.step import Step
from kpybroker.groups.ground.timers import Timers
from kpybroker.metadata.image import Image
from kpybroker.wire.rpc.list_groups import ListedGroup

Decision = Callable[[Any, Any, Step], None]
"""Decides a command. The arguments are the ticket, the command and the step."""


class Usage(NamedTuple):
    """The conditions under which committed offsets of a group may expire (KIP-211)."""

    topics: frozenset[str] | None
    """The topics in use, whose offsets do not expire. None if they are unknown; then no offsets expire."""
    empty_since_ms: int | None
    """When the group became empty, by the wall clock. Its offsets expire one retention time later. If None, they expire
    one retention time after their commit."""


class Group(Protocol):
    """One group of any kind."""

    group_id: str

    @property
    def may_expire(self) -> bool:
        """Whether the group has no members and none are joining, so that it may be deleted once it has no offsets."""

    def usage(self) -> Usage:
        """The topics that the group uses."""

    def subscribes(self, topic: str) -> bool:
        """Whether any member may read the topic."""

    def check_delete(self) -> None:
        """Raises NON_EMPTY_GROUP if the group has members, GROUP_ID_NOT_FOUND if DeleteGroups does not support this
        kind."""

    def check_delete_offsets(self) -> None:
        """Raises NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND if the offsets of the group must not be deleted."""


class ClassicCalls(Protocol):
    """JoinGroup, SyncGroup, Heartbeat and LeaveGroup. During a migration, other kinds of groups handle them too."""

    def join(self, ticket: Any, command: Join, step: Step) -> None: ...

    def sync(self, ticket: Any, command: Sync, step: Step) -> None: ...

    def heartbeat(self, ticket: Any, command: Heartbeat, step: Step) -> None: ...

    def leave(self, ticket: Any, command: Leave, step: Step) -> None: ...


class GroupKind(ABC):
    """The groups of one protocol in one partition of `__consumer_offsets`."""

    name: ClassVar[str]
    """The name of the kind, by which `GroupKinds` finds it."""
    record_kinds: ClassVar[Collection[int]]
    """The kinds of records that store these groups."""
    stored: Mapping[str, Any]
    """Hard state: the content of each group's records."""
    groups: Mapping[str, Any]
    """Soft state: the groups by id."""
    classic_calls: ClassicCalls | None = None
    """Handles the classic requests for these groups; None if no group of this kind has classic members."""
    taken: ClassVar[ErrorCode] = ErrorCode.GROUP_ID_NOT_FOUND
    """The error for a client that wants to create a group of this kind while a group of another kind has the id."""

    @abstractmethod
    def __init__(self, context: KindContext) -> None: ...

    # -- records

    @staticmethod
    @abstractmethod
    def check_record(kind: int, key: bytes, value: bytes | None) -> None:
        """Check that a replay, and the start of a coordinator after it, can read the record. Raises MalformedFrame,
        Damage."""

    @abstractmethod
    def apply(self, kind: int, key: bytes, value: bytes | None) -> None:
        """Apply one record of `record_kinds` to the hard state. Raises MalformedFrame."""

    @abstractmethod
    def wake(self, step: Step) -> None:
        """Build the groups from the hard state, with new sessions, when a coordinator starts. Raises Damage."""

    @abstractmethod
    def start_over(self, step: Step) -> None:
        """Refuse parked requests and drop everything but the hard state, after the log has refused the last step. The
        machine clears the timers."""

    # -- commands

    def decisions(self) -> Mapping[type, Decision]:
        """The functions for commands that only this kind has."""
        return {}

    def configure(self, settings: GroupSettings) -> None:
        """Apply settings that changed while the broker runs."""
        return

    @abstractmethod
    def commit(self, command: CommitOffsets, step: Step) -> list[ErrorCode]:
        """Commit offsets to a group of this kind. Returns the codes of the partitions, in order. Raises KafkaError."""

    def check_fetch(self, command: FetchOffsets) -> None:
        """Raises KafkaError if the member may not read the offsets of its group."""
        return

    @abstractmethod
    def row(self, group_id: str) -> ListedGroup:
        """The row of a group in ListGroups."""

    def listed(self) -> Iterable[ListedGroup]:
        """The rows of all groups in ListGroups."""
        return [self.row(group_id) for group_id in self.groups]

    @abstractmethod
    def forget(self, group_id: str, step: Step) -> None:
        """Delete the group's records. Its offsets must have been deleted already."""

    def delete(self, ticket: Any, group_id: str, step: Step) -> None:
        """Delete a group that has no offsets. The result of DeleteGroup is False once the whole group is deleted."""
        self.forget(group_id, step)
        step.answer(ticket, False)

    def drop_topics(self, topics: Mapping[str, bytes], step: Step) -> None:
        """Delete all other state of deleted topics. `topics`: the ids of the topics by name."""
        return

    def gives_way(self, group_id: str, to: GroupKind) -> bool:
        """Whether a group of the kind `to` may take the id of this group, which is then deleted: it has no members."""
        return False

    def expiring(self) -> Iterable[str]:
        """The groups whose offsets may expire."""
        return self.groups


class KindContext(NamedTuple):
    """The parts from which the kinds of one machine are built."""

    kinds: GroupKinds
    """The kinds that were created earlier. The machine adds each kind after it has been created."""
    settings: GroupSettings
    timers: Timers
    new_id: Callable[[], str]
    """Makes the random part of member ids."""
    image: Callable[[], Image]


class DefaultKind(GroupKind):
    """The kind of groups that only have offsets. It handles the classic requests for groups that do not exist."""

    classic_calls: ClassicCalls

    @abstractmethod
    def add_without_members(self, group_id: str, wall_ms: int) -> Group:
        """Create a group that only has offsets. Nothing is written."""


class GroupKinds:
    """The kinds of groups of one machine."""

    default: DefaultKind
    """The kind of a group that only has offsets."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._kinds: list[GroupKind] = []

    def add(self, kind: GroupKind) -> None:
        """Register a kind. If two kinds have a group with the same id, the kind that was registered later is used."""
        self._kinds.append(kind)
        if isinstance(kind, DefaultKind):
            self.default = kind

    def __iter__(self) -> Iterator[GroupKind]:
        return iter(self._kinds)

    def __getitem__(self, name: str) -> Any:
        """The kind with this name."""
        return next(kind for kind in self._kinds if kind.name == name)

    def of(self, group_id: str) -> GroupKind | None:
        """The kind of a group; None if there is no such group."""
        found = None
        for kind in self._kinds:
            if group_id in kind.groups:
                found = kind
        return found

    def find(self, group_id: str) -> tuple[GroupKind, Group]:
        """A group and its kind. Raises GROUP_ID_NOT_FOUND."""
        kind = self.of(group_id)
        if kind is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return kind, kind.groups[group_id]

    def classic_calls(self, group_id: str) -> ClassicCalls:
        """The object that handles JoinGroup, SyncGroup, Heartbeat and LeaveGroup for a group id."""
        kind = self.of(group_id)
        return (kind and kind.classic_calls) or self.default.classic_calls

    def make_room(self, group_id: str, for_kind: GroupKind, step: Step) -> None:
        """Delete a group without members whose id a group of another kind needs.

        Raises `for_kind.taken` if a group of another kind keeps the id; GROUP_MAX_SIZE_REACHED. The limit applies to
        the groups of all kinds together, because each group takes memory.
        """
        for kind in self._kinds:
            if kind is not for_kind and group_id in kind.groups:
                if not kind.gives_way(group_id, for_kind):
                    raise KafkaError(for_kind.taken, f"Group {group_id} is not a {for_kind.name} group.")
                kind.forget(group_id, step)
        if sum(len(kind.groups) for kind in self._kinds) >= self._settings.max_groups:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, "the limit of groups is reached")
