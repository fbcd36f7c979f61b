"""The interface of a kind of group: one folder for each group protocol, one object for its groups.

The machine handles offsets, time and the log. Everything else it delegates to the kinds that `kinds.py` registers:
which records they read, which commands they handle, and what is allowed for their groups.
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
"""Decides one command: from its ticket, the command and the step."""


class Usage(NamedTuple):
    """Which committed offsets of a group may expire (KIP-211)."""

    topics: frozenset[str] | None
    """The topics in use, whose offsets stay; None if they are unknown, in which case all offsets stay."""
    empty_since_ms: int | None
    """When the group became empty, by the wall clock: its offsets expire a retention time later. None: they expire a
    retention time after their commit."""


class Group(Protocol):
    """One group of any kind."""

    group_id: str

    @property
    def may_expire(self) -> bool:
        """Whether the group has no members and none are joining: it may be deleted once it has no offsets."""

    def usage(self) -> Usage:
        """The topics that the group uses."""

    def subscribes(self, topic: str) -> bool:
        """Whether any member may read the topic."""

    def check_delete(self) -> None:
        """Raises NON_EMPTY_GROUP; GROUP_ID_NOT_FOUND if DeleteGroups does not show groups of this kind."""

    def check_delete_offsets(self) -> None:
        """Raises NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""


class ClassicCalls(Protocol):
    """JoinGroup, SyncGroup, Heartbeat and LeaveGroup, which reach groups of other kinds during a migration."""

    def join(self, ticket: Any, command: Join, step: Step) -> None: ...

    def sync(self, ticket: Any, command: Sync, step: Step) -> None: ...

    def heartbeat(self, ticket: Any, command: Heartbeat, step: Step) -> None: ...

    def leave(self, ticket: Any, command: Leave, step: Step) -> None: ...


class GroupKind(ABC):
    """The groups of one protocol in one partition of `__consumer_offsets`."""

    name: ClassVar[str]
    """The name of the kind, by which `GroupKinds` finds it."""
    record_kinds: ClassVar[Collection[int]]
    """The kinds of record that store these groups."""
    stored: Mapping[str, Any]
    """Hard state: what the records contain about each group."""
    groups: Mapping[str, Any]
    """Soft state: group id -> `Group`."""
    classic_calls: ClassicCalls | None = None
    """Answers the classic calls for these groups; None: no group of this kind has classic members."""
    taken: ClassVar[ErrorCode] = ErrorCode.GROUP_ID_NOT_FOUND
    """The error for a client that wants to create a group of this kind while a group of another kind has the id."""

    @abstractmethod
    def __init__(self, context: KindContext) -> None: ...

    # -- records

    @staticmethod
    @abstractmethod
    def check_record(kind: int, key: bytes, value: bytes | None) -> None:
        """Read a record as a replay does, and a coordinator after it. Raises MalformedFrame, Damage."""

    @abstractmethod
    def apply(self, kind: int, key: bytes, value: bytes | None) -> None:
        """Apply one record of `record_kinds` to the hard state. Raises MalformedFrame."""

    @abstractmethod
    def wake(self, step: Step) -> None:
        """A new coordinator starts: build the groups from the hard state, with new sessions. Raises Damage."""

    @abstractmethod
    def start_over(self, step: Step) -> None:
        """The log refused the last step: refuse parked requests, and drop everything but the hard state. The machine
        clears the timers."""

    # -- commands

    def decisions(self) -> Mapping[type, Decision]:
        """The decisions on commands that only this kind has."""
        return {}

    def configure(self, settings: GroupSettings) -> None:
        """The settings have changed while the broker runs."""
        return

    @abstractmethod
    def commit(self, command: CommitOffsets, step: Step) -> list[ErrorCode]:
        """Commit offsets to a group of this kind; the codes of the partitions, in order. Raises KafkaError."""

    def check_fetch(self, command: FetchOffsets) -> None:
        """Raises KafkaError if the member may not read the offsets of its group."""
        return

    @abstractmethod
    def row(self, group_id: str) -> ListedGroup:
        """A group as ListGroups shows it."""

    def listed(self) -> Iterable[ListedGroup]:
        """All groups as ListGroups shows them."""
        return [self.row(group_id) for group_id in self.groups]

    @abstractmethod
    def forget(self, group_id: str, step: Step) -> None:
        """Delete the group's records. Its offsets have been deleted already."""

    def delete(self, ticket: Any, group_id: str, step: Step) -> None:
        """Delete a group that has no offsets. Answers DeleteGroup with False once nothing is left of the group."""
        self.forget(group_id, step)
        step.answer(ticket, False)

    def drop_topics(self, topics: Mapping[str, bytes], step: Step) -> None:
        """Forget everything else that is kept about deleted topics (name -> the id they had)."""
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
    """The kinds that were created before; the machine adds each one after it is created."""
    settings: GroupSettings
    timers: Timers
    new_id: Callable[[], str]
    """Makes the random part of member ids."""
    image: Callable[[], Image]


class DefaultKind(GroupKind):
    """The kind of groups that only have offsets. It answers the classic calls for groups that do not exist."""

    classic_calls: ClassicCalls

    @abstractmethod
    def add_without_members(self, group_id: str, wall_ms: int) -> Group:
        """Create a group that only has offsets. Nothing is written."""


class GroupKinds:
    """The kinds of group of one machine."""

    default: DefaultKind
    """The kind of a group that only has offsets."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._kinds: list[GroupKind] = []

    def add(self, kind: GroupKind) -> None:
        """Register a kind; if two kinds have a group with the same id, the later kind counts."""
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
        """The object that answers JoinGroup, SyncGroup, Heartbeat and LeaveGroup for a group id."""
        kind = self.of(group_id)
        return (kind and kind.classic_calls) or self.default.classic_calls

    def make_room(self, group_id: str, for_kind: GroupKind, step: Step) -> None:
        """Delete a group without members whose id a group of another kind needs.

        Raises `for_kind.taken` if a group of another kind keeps the id; GROUP_MAX_SIZE_REACHED. Groups of every kind
        count: each takes memory.
        """
        for kind in self._kinds:
            if kind is not for_kind and group_id in kind.groups:
                if not kind.gives_way(group_id, for_kind):
                    raise KafkaError(for_kind.taken, f"Group {group_id} is not a {for_kind.name} group.")
                kind.forget(group_id, step)
        if sum(len(kind.groups) for kind in self._kinds) >= self._settings.max_groups:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, "the limit of groups is reached")
