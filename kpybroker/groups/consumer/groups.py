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
from kpybroker.groups.consumer.classic_members import ClassicMembers
from kpybroker.groups.consumer.description import described, listed
from kpybroker.groups.consumer.group import ConsumerGroup, MemberState
from kpybroker.groups.consumer.heartbeats import Heartbeats
from kpybroker.groups.consumer.migration import Migration
from kpybroker.groups.consumer.transitions import Transitions
from kpybroker.groups.ground.commands import ConsumerHeartbeat, Join
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.step import Step
from kpybroker.groups.ground.timers import Timers
from kpybroker.metadata.image import Image
from kpybroker.wire.rpc import consumer_group_describe, join_group, list_groups, sync_group


class ConsumerGroups:
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
        self.groups: dict[str, ConsumerGroup] = {}
        self._image = image
        self._check_room = check_room
        self._steps = Transitions(rebalance.settings, timers, image)
        self._migration = Migration(self._steps, rebalance, classic, self)
        self._steps.on_all_classic = self._migration.downgrade
        self._heartbeat = Heartbeats(self._steps, self.find, self._find_or_make)
        self.classic = ClassicMembers(self._steps)

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

    def wake(self, step: Step) -> None:
        """A new coordinator begins: every session anew. Raises Damage."""
        for group_id, said in self.stored.items():
            group = self.groups[group_id] = records.read_group(group_id, said)
            for member in group.members.values():
                self._steps.begin_session(group, member, step.now_ms)
                if member.current.state is MemberState.UNREVOKED_PARTITIONS:
                    self._steps.begin_to_wait(group, member, step)

    def start_over(self) -> None:
        """Back to the hard state; the timers have been cleared."""
        self.groups.clear()

    # -- finding --------------------------------------------------------------------------------------------------

    def find(self, group_id: str) -> ConsumerGroup:
        """Raises GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def _find_or_make(self, group_id: str, step: Step) -> ConsumerGroup:
        group = self.groups.get(group_id) or self._migration.upgraded(group_id, step)
        if group is None:
            self._check_room(group_id)
            group = self.groups[group_id] = ConsumerGroup(group_id)
        return group

    def give_way(self, group_id: str, step: Step) -> None:
        """A group without members is no group of either protocol: the classic one may have it."""
        group = self.groups.get(group_id)
        if group is not None and not group.members:
            self.forget(group, step)

    def forget(self, group: ConsumerGroup, step: Step) -> None:
        """The group is no more; its offsets are another matter."""
        group_id = group.group_id
        keys = dict.fromkeys(self.stored.get(group_id, ()))
        for record in step.records:
            key = record.key
            if (
                key is not None
                and int.from_bytes(key[:2], "big") in records.KINDS
                and records.group_of(key) == group_id
            ):
                keys[key] = None
        for record in records.tombstones(keys):
            step.write(record)
        for member in group.members.values():
            member.cancel_timers()
        if group.resolving is not None:
            group.resolving.cancel()
        del self.groups[group_id]

    # -- what classic members ask, answered with its code in the response ----------------------------------------------

    def join(self, group: ConsumerGroup, command: Join, new_id: str, step: Step) -> join_group.Response:
        try:
            return self.classic.join(group, command, new_id, step)
        except KafkaError as refusal:
            return refused_join(refusal.code, command.request.member_id)

    def sync(self, group: ConsumerGroup, request: sync_group.Request, step: Step) -> sync_group.Response:
        try:
            return self.classic.sync(group, request, step)
        except KafkaError as refusal:
            return refused_sync(refusal.code)

    # -- what is asked --------------------------------------------------------------------------------------------

    def beat(self, ticket: Any, command: ConsumerHeartbeat, step: Step) -> None:
        step.answer(ticket, self._heartbeat.beat(command, step))

    def describe(self, group_id: str) -> consumer_group_describe.DescribedGroup:
        """Raises GROUP_ID_NOT_FOUND."""
        group = self.find(group_id)
        return described(group, self._steps.assignor(group), self._image())

    def list(self) -> Sequence[list_groups.ListedGroup]:
        return [listed(group) for group in self.groups.values()]
