"""The transitions of streams groups (KIP-1071) that heartbeats and timers share.

Every change is written in the same step, so that a new coordinator can continue from the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.step import Step
from kpybroker.groups.ground.subscriptions import MetadataHashes, topics_of
from kpybroker.groups.ground.timers import Timers
from kpybroker.groups.streams import records
from kpybroker.groups.streams.assignor import MemberTasks, TaskCount, sticky
from kpybroker.groups.streams.configuration import Problem
from kpybroker.groups.streams.group import NOT_VALIDATED, MemberState, StreamsGroup, StreamsMember
from kpybroker.groups.streams.reconciliation import reconciled
from kpybroker.groups.streams.tasks import Tasks
from kpybroker.groups.streams.topology import Topology
from kpybroker.metadata.group_settings import number_of
from kpybroker.metadata.image import Image

ASSIGNMENT_DELAYED = 5
DELAYED_FOR_MEMBERS = Problem(ASSIGNMENT_DELAYED, "Assignment delayed due to the configured initial rebalance delay.")
DELAYED_FOR_INTERVAL = Problem(ASSIGNMENT_DELAYED, "Assignment delayed due to the configured assignment interval.")
STANDBYS = "num.standby.replicas"
INT32_MAX = 2**31 - 1


class Transitions:
    """Changes groups, and writes the changes. image: returns the metadata."""

    def __init__(self, settings: GroupSettings, timers: Timers, image: Callable[[], Image]) -> None:
        self.settings = settings
        self.timers = timers
        self.image = image
        self._hashes = MetadataHashes()

    def configure(self, settings: GroupSettings) -> None:
        """Use new settings."""
        self.settings = settings

    # -- settings -------------------------------------------------------------------------------------------------

    def heartbeat_interval_ms(self, group_id: str) -> int:
        known = self.settings
        return number_of(
            self.image(),
            group_id,
            "streams.heartbeat.interval.ms",
            known.streams_heartbeat_interval_ms,
            known.streams_min_heartbeat_interval_ms,
            known.streams_max_heartbeat_interval_ms,
        )

    def _session_timeout_ms(self, group_id: str) -> int:
        known = self.settings
        return number_of(
            self.image(),
            group_id,
            "streams.session.timeout.ms",
            known.streams_session_timeout_ms,
            known.streams_min_session_timeout_ms,
            known.streams_max_session_timeout_ms,
        )

    def _assignment_interval_ms(self, group_id: str) -> int:
        known = self.settings
        return number_of(
            self.image(),
            group_id,
            "streams.assignment.interval.ms",
            known.streams_assignment_interval_ms,
            known.streams_min_assignment_interval_ms,
            known.streams_max_assignment_interval_ms,
        )

    def _initial_delay_ms(self, group_id: str) -> int:
        default = self.settings.streams_initial_rebalance_delay_ms
        return number_of(self.image(), group_id, "streams.initial.rebalance.delay.ms", default, 0, INT32_MAX)

    def _assignment_configs(self, group_id: str) -> dict[str, str]:
        known = self.settings
        count = number_of(
            self.image(),
            group_id,
            f"streams.{STANDBYS}",
            known.streams_num_standby_replicas,
            0,
            known.streams_max_standby_replicas,
        )
        return {STANDBYS: str(count)}

    # -- topics ---------------------------------------------------------------------------------------------------

    def metadata_hash(self, topology: Topology) -> int:
        """The hash of the existing topics of a topology."""
        image = self.image()
        return self._hashes.of(image, topics_of(image.topic, topology.required))

    def refresh(self, group: StreamsGroup, step: Step, *, changed: bool, told: int) -> None:
        """Bump the group's epoch if a member, the topology, its topics or the assignor's settings have changed. `told`:
        the hash of the topics."""
        assert group.topology is not None
        assert group.configured is not None
        validated_epoch = group.topology.epoch if group.configured.is_ready else NOT_VALIDATED
        configs = self._assignment_configs(group.group_id)
        changed = changed or told != group.metadata_hash or validated_epoch != group.validated_epoch
        if changed or configs != group.assignment_configs:
            group.bump(told, validated_epoch, configs)
            step.write(records.epoch_record(group))

    # -- assignments ----------------------------------------------------------------------------------------------

    def delay_first(self, group: StreamsGroup, now_ms: int) -> None:
        """Delay the first assignment, so that more members can join a group that had no members."""
        delay_ms = self._initial_delay_ms(group.group_id)
        if delay_ms > 0 and not group.is_delayed:
            self.timers.set(group.delay_timer(partial(self._assign_first, group)), now_ms + delay_ms)

    def _assign_first(self, group: StreamsGroup, step: Step) -> None:
        if group.members and group.configured is not None:
            self.retarget(group, step)

    def retarget(self, group: StreamsGroup, step: Step) -> Problem | None:
        """Compute a new target assignment if the group has changed, or return the reason why this has to wait."""
        if group.is_delayed:
            return DELAYED_FOR_MEMBERS
        if group.epoch <= group.assignment_epoch:
            return None
        interval_ms = self._assignment_interval_ms(group.group_id)
        if group.decided_at_ms is None:  # another coordinator computed the assignment, or none has been computed
            passed_ms = min(max(step.wall_ms - group.assigned_at_ms, 0), interval_ms)
            group.decided(step.now_ms - passed_ms)
        assert group.decided_at_ms is not None
        if step.now_ms < group.decided_at_ms + interval_ms:
            return DELAYED_FOR_INTERVAL
        for member_id, target in self._targets(group, group.assignment_configs).items():
            if group.targets.get(member_id) != target:
                group.targets[member_id] = target
                step.write(records.target_record(group.group_id, member_id, target))
        group.assigned(group.epoch, step.wall_ms, step.now_ms)
        step.write(records.target_epoch_record(group))
        return None

    def _targets(self, group: StreamsGroup, configs: Mapping[str, str]) -> dict[str, Tasks]:
        assert group.configured is not None
        subtopologies = group.configured.subtopologies
        if not group.configured.is_ready or subtopologies is None:
            return dict.fromkeys(group.members, Tasks())
        return sticky(
            {
                member_id: MemberTasks(member.metadata.process_id, group.targets.get(member_id, Tasks()))
                for member_id, member in group.members.items()
            },
            {name: TaskCount(each.task_count, bool(each.changelogs)) for name, each in subtopologies.items()},
            int(configs.get(STANDBYS, "0")),
        )

    def reconcile(self, group: StreamsGroup, member: StreamsMember, owned: Tasks | None, step: Step) -> None:
        """Move a member one step closer to its target, and start its timer if it has to revoke tasks."""
        target = Tasks() if group.is_delayed else group.targets.get(member.member_id, Tasks())
        current = reconciled(group, member, group.assignment_epoch, target, owned)
        if current == member.current:
            return
        group.hold(member, current)
        step.write(records.current_record(group.group_id, member))
        if current.state is MemberState.UNREVOKED_TASKS:
            self.begin_to_wait(group, member, step)
        elif member.rebalance is not None:
            member.rebalance.cancel()

    # -- members --------------------------------------------------------------------------------------------------

    def begin_session(self, group: StreamsGroup, member: StreamsMember, now_ms: int) -> None:
        """Restart the member's session."""
        session = member.session_timer(partial(self._late, group, member))
        self.timers.set(session, now_ms + self._session_timeout_ms(group.group_id))

    def begin_to_wait(self, group: StreamsGroup, member: StreamsMember, step: Step) -> None:
        """Start the rebalance timeout, within which the member must revoke its tasks."""
        timer = member.rebalance_timer(partial(self._late, group, member))
        self.timers.set(timer, step.now_ms + max(member.metadata.rebalance_timeout_ms, 0))

    def _late(self, group: StreamsGroup, member: StreamsMember, step: Step) -> None:
        if group.members.get(member.member_id) is member:
            self.remove(group, member, step)

    def remove(self, group: StreamsGroup, member: StreamsMember, step: Step) -> None:
        """Remove a member that left or timed out. Its tasks can then be assigned to others."""
        group.remove(member)
        for record in records.member_tombstones(group.group_id, member.member_id):
            step.write(record)
        group.bump(group.metadata_hash, group.validated_epoch, group.assignment_configs)
        step.write(records.epoch_record(group))
