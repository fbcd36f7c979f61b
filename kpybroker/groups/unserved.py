"""Groups of protocols that are not served. Their ids are reserved, and their records stay in the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.classic.records import read_group_id
from kpybroker.groups.ground.commands import CommitOffsets
from kpybroker.groups.ground.kind import GroupKind, KindContext, Usage
from kpybroker.groups.ground.record_keys import FOREIGN_GROUP_METADATA
from kpybroker.groups.ground.step import Step
from kpybroker.wire.rpc.list_groups import ListedGroup


@dataclass(frozen=True, slots=True)
class UnservedGroup:
    """A group of a protocol that is not served. Its state is not known."""

    group_id: str
    type: str
    may_expire = False

    def usage(self) -> Usage:
        """The topics in use are unknown, so no offsets expire."""
        return Usage(None, None)

    def subscribes(self, topic: str) -> bool:
        """True, because the subscription is unknown."""
        return True

    def check_delete(self) -> None:
        """Raises GROUP_ID_NOT_FOUND: these groups cannot be deleted."""
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} not found.")

    check_delete_offsets = check_delete


class UnservedGroups(GroupKind):
    """Groups of the types in FOREIGN_GROUP_METADATA."""

    name = "unserved"
    record_kinds = frozenset(FOREIGN_GROUP_METADATA)

    def __init__(self, context: KindContext) -> None:
        self.stored: dict[str, UnservedGroup] = {}
        """Hard state: the type of each group, by group id."""
        self.groups = self.stored

    @staticmethod
    def check_record(kind: int, key: bytes, value: bytes | None) -> None:
        read_group_id(key)

    def apply(self, kind: int, key: bytes, value: bytes | None) -> None:
        group_id = read_group_id(key)
        if value is None:
            self.stored.pop(group_id, None)
        else:
            self.stored[group_id] = UnservedGroup(group_id, FOREIGN_GROUP_METADATA[kind])

    def wake(self, step: Step) -> None:
        """Does nothing for these groups."""

    def start_over(self, step: Step) -> None:
        """Does nothing, because all state is hard state."""

    def commit(self, command: CommitOffsets, step: Step) -> list[ErrorCode]:
        if command.generation >= 0:
            known = command.knows_group_id_not_found
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION)
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the group is kept by a protocol that is not served")

    def row(self, group_id: str) -> ListedGroup:
        group = self.stored[group_id]
        return ListedGroup(group_id=group_id, protocol_type=group.type, group_state="Unknown", group_type=group.type)

    def forget(self, group_id: str, step: Step) -> None:
        raise AssertionError("groups of other protocols are not deleted")

    def expiring(self) -> Iterable[str]:
        return ()
