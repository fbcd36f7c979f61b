"""The transitions of share groups (KIP-932) that heartbeats, timers and errands share.

Every change is written in the same step, so that a new coordinator can continue from the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.step import Step
from kpybroker.groups.ground.subscriptions import MetadataHashes, partitions_of, topics_of
from kpybroker.groups.ground.timers import Timers
from kpybroker.groups.share import records
from kpybroker.groups.share.assignor import simple
from kpybroker.groups.share.group import NOTHING, ShareGroup, ShareMember, TopicState
from kpybroker.metadata.group_settings import number_of
from kpybroker.metadata.image import Image


class Transitions:
    """Changes groups, and writes the changes.

    - image: returns the metadata.
    - on_initialize: called with a group and the share partitions that it begins to initialize.
    """

    def __init__(
        self,
        settings: GroupSettings,
        timers: Timers,
        image: Callable[[], Image],
        on_initialize: Callable[[ShareGroup, Mapping[bytes, TopicState]], None],
    ) -> None:
        self.settings = settings
        self.timers = timers
        self.image = image
        self.on_initialize = on_initialize
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
            "share.heartbeat.interval.ms",
            known.share_heartbeat_interval_ms,
            known.share_min_heartbeat_interval_ms,
            known.share_max_heartbeat_interval_ms,
        )

    def _session_timeout_ms(self, group_id: str) -> int:
        known = self.settings
        return number_of(
            self.image(),
            group_id,
            "share.session.timeout.ms",
            known.share_session_timeout_ms,
            known.share_min_session_timeout_ms,
            known.share_max_session_timeout_ms,
        )

    def _assignment_interval_ms(self, group_id: str) -> int:
        known = self.settings
        return number_of(
            self.image(),
            group_id,
            "share.assignment.interval.ms",
            known.share_assignment_interval_ms,
            known.share_min_assignment_interval_ms,
            known.share_max_assignment_interval_ms,
        )

    # -- topics ---------------------------------------------------------------------------------------------------

    def partitions(self, group: ShareGroup) -> dict[bytes, int]:
        """The number of partitions of each existing topic that a member subscribes to, by topic id."""
        return partitions_of(self.image().owned_topic, group.topics())

    def _hash(self, group: ShareGroup) -> int:
        image = self.image()
        return self._hashes.of(image, topics_of(image.owned_topic, group.topics()))

    def refresh(self, group: ShareGroup, step: Step, *, changed: bool) -> None:
        """Bump the group's epoch if its subscriptions or topics have changed, or more partitions are initialized."""
        if changed:
            group.compared_with(None)
        is_at_rest = group.epoch == group.assignment_epoch
        if group.seen is self.image() and not (is_at_rest and group.is_pending):
            return
        partitions = self.partitions(group)
        told = self._hash(group)
        if changed or told != group.metadata_hash or (is_at_rest and group.has_unassigned(partitions)):
            group.bump(told)
            step.write(records.epoch_record(group))

    def initialize_missing(self, group: ShareGroup, step: Step) -> None:
        """Begin to initialize the new share partitions of subscribed topics, and remove deleted topics."""
        image = self.image()
        if group.seen is image:
            return
        known = (*group.initializing, *group.initialized, *group.deleting)
        gone = [topic_id for topic_id in known if image.topic_by_id(topic_id) is None]
        for topic_id in gone:
            group.drop(topic_id)
        names = {topic.id: topic.name for name in group.topics() if (topic := image.owned_topic(name)) is not None}
        missing = group.missing(self.partitions(group), names)
        if missing:
            group.initialize(missing)
            self.on_initialize(group, missing)
        if missing or gone:
            step.write(records.state_record(group))
        group.compared_with(image)

    # -- assignments ----------------------------------------------------------------------------------------------

    def retarget(self, group: ShareGroup, step: Step) -> None:
        """Compute a new target assignment, if the group has changed and the assignment interval has passed."""
        if group.epoch <= group.assignment_epoch:
            return
        interval_ms = self._assignment_interval_ms(group.group_id)
        if group.decided_at_ms is None:  # another coordinator decided the last assignment, or there is none
            passed_ms = min(max(step.wall_ms - group.assigned_at_ms, 0), interval_ms)
            group.decided(step.now_ms - passed_ms)
        assert group.decided_at_ms is not None
        if step.now_ms < group.decided_at_ms + interval_ms:
            return
        image = self.image()
        wanted = {
            member_id: frozenset(partitions_of(image.owned_topic, member.names))
            for member_id, member in group.members.items()
        }
        plan = simple(wanted, group.targets, group.assignable(self.partitions(group)))
        for member_id, target in plan.items():
            if member_id not in group.targets or group.targets[member_id] != target:
                group.targets[member_id] = target
                step.write(records.target_record(group.group_id, member_id, target))
        group.assigned(group.epoch, step.wall_ms, step.now_ms)
        step.write(records.target_epoch_record(group))

    def reconcile(self, group: ShareGroup, member: ShareMember, step: Step) -> None:
        """Assign a member its target, without topics to which it no longer subscribes."""
        wanted = partitions_of(self.image().owned_topic, member.names)
        target = frozenset(place for place in group.targets.get(member.member_id, NOTHING) if place[0] in wanted)
        if member.epoch == group.assignment_epoch and member.assigned == target:
            return
        previous = member.epoch if member.epoch != group.assignment_epoch else member.previous_epoch
        member.hold(group.assignment_epoch, previous, target)
        step.write(records.current_record(group.group_id, member))

    # -- members --------------------------------------------------------------------------------------------------

    def begin_session(self, group: ShareGroup, member: ShareMember, now_ms: int) -> None:
        """Restart the member's session."""
        session = member.session_timer(partial(self._late, group, member))
        self.timers.set(session, now_ms + self._session_timeout_ms(group.group_id))

    def _late(self, group: ShareGroup, member: ShareMember, step: Step) -> None:
        if group.members.get(member.member_id) is member:
            self.remove(group, member, step)

    def remove(self, group: ShareGroup, member: ShareMember, step: Step) -> None:
        """Remove a member that left or timed out."""
        group.remove(member)
        for record in records.member_tombstones(group.group_id, member.member_id):
            step.write(record)
        group.bump(self._hash(group))
        step.write(records.epoch_record(group))
