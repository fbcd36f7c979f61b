"""The consumer groups (KIP-848) of one partition of `__consumer_offsets`: what records say, and the groups they make.

Hard state is the last value of each record; groups are made of it when a coordinator wakes, and from then on change
together with what they write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.classic.rebalance import Rebalance, refused_join, refused_sync
from kpybroker.groups.consumer import records
from kpybroker.groups.consumer.classic_members import ModernClassic
from kpybroker.groups.consumer.description import described, listed
from kpybroker.groups.consumer.group import MemberState, ModernGroup
from kpybroker.groups.consumer.heartbeat import ModernHeartbeat
from kpybroker.groups.consumer.migration import Migration
from kpybroker.groups.consumer.transitions import ModernSteps
from kpybroker.groups.ground.commands import ConsumerHeartbeat, Join
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.step import Turn
from kpybroker.groups.ground.timers import Timers
from kpybroker.metadata.image import Image
from kpybroker.wire.rpc import consumer_group_describe, join_group, list_groups, sync_group


class ModernGroups:
    """Finds groups, makes and forgets them.

    - classic: the groups of the classic protocol, from which some come and to which some go.
    - check_room: raises where no further group may be made.
    """

    def __init__(
        self,
        rebalance: Rebalance,
        timers: Timers,
        image: Callable[[], Image],
        classic: dict[str, Any],
        check_room: Callable[[str], None],
    ) -> None:
        self.stored: dict[str, dict[bytes, bytes]] = {}
        """Hard: group id -> key -> value."""
        self.groups: dict[str, ModernGroup] = {}
        self._image = image
        self._check_room = check_room
        self._steps = ModernSteps(rebalance.settings, timers, image)
        self._migration = Migration(self._steps, rebalance, classic, self)
        self._steps.on_all_classic = self._migration.downgrade
        self._heartbeat = ModernHeartbeat(self._steps, self.find, self._find_or_make)
        self.classic = ModernClassic(self._steps)

    def configure(self, settings: GroupSettings) -> None:
        """Go on with other settings."""
        self._steps.settings = settings

    # -- hard state -----------------------------------------------------------------------------------------------

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Take one record of these kinds into the hard state. Raises MalformedFrame."""
        group_id = records.group_of(key)
        if value is not None:
            self.stored.setdefault(group_id, {})[bytes(key)] = bytes(value)
            return
        of_group = self.stored.get(group_id)
        if of_group is not None:
            of_group.pop(bytes(key), None)
            if not of_group:
                del self.stored[group_id]

    def wake(self, turn: Turn) -> None:
        """A new coordinator begins: every session anew. Raises Damage."""
        for group_id, said in self.stored.items():
            group = self.groups[group_id] = records.read_group(group_id, said)
            for member in group.members.values():
                self._steps.begin_session(group, member, turn.now_ms)
                if member.current.state is MemberState.UNREVOKED_PARTITIONS:
                    self._steps.begin_to_wait(group, member, turn)

    def start_over(self) -> None:
        """Back to the hard state; the timers have been cleared."""
        self.groups.clear()

    # -- finding --------------------------------------------------------------------------------------------------

    def find(self, group_id: str) -> ModernGroup:
        """Raises GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def _find_or_make(self, group_id: str, turn: Turn) -> ModernGroup:
        group = self.groups.get(group_id) or self._migration.upgraded(group_id, turn)
        if group is None:
            self._check_room(group_id)
            group = self.groups[group_id] = ModernGroup(group_id)
        return group

    def give_way(self, group_id: str, turn: Turn) -> None:
        """A group without members is no group of either protocol: the classic one may have it."""
        group = self.groups.get(group_id)
        if group is not None and not group.members:
            self.forget(group, turn)

    def forget(self, group: ModernGroup, turn: Turn) -> None:
        """The group is no more; its offsets are another matter."""
        group_id = group.group_id
        keys = dict.fromkeys(self.stored.get(group_id, ()))
        for record in turn.records:
            key = record.key
            if (
                key is not None
                and int.from_bytes(key[:2], "big") in records.KINDS
                and records.group_of(key) == group_id
            ):
                keys[key] = None
        for record in records.tombstones(keys):
            turn.write(record)
        for member in group.members.values():
            member.cancel_timers()
        if group.resolving is not None:
            group.resolving.cancel()
        del self.groups[group_id]

    # -- what classic members ask, answered with its code in the response ----------------------------------------------

    def join(self, group: ModernGroup, command: Join, new_id: str, turn: Turn) -> join_group.Response:
        try:
            return self.classic.join(group, command, new_id, turn)
        except KafkaError as refusal:
            return refused_join(refusal.code, command.request.member_id)

    def sync(self, group: ModernGroup, request: sync_group.Request, turn: Turn) -> sync_group.Response:
        try:
            return self.classic.sync(group, request, turn)
        except KafkaError as refusal:
            return refused_sync(refusal.code)

    # -- what is asked --------------------------------------------------------------------------------------------

    def beat(self, ticket: Any, command: ConsumerHeartbeat, turn: Turn) -> None:
        turn.answer(ticket, self._heartbeat.beat(command, turn))

    def describe(self, group_id: str) -> consumer_group_describe.DescribedGroup:
        """Raises GROUP_ID_NOT_FOUND."""
        group = self.find(group_id)
        return described(group, self._steps.assignor(group), self._image())

    def list(self) -> Sequence[list_groups.ListedGroup]:
        return [listed(group) for group in self.groups.values()]
