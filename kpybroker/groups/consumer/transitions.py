"""Transitions of consumer groups (KIP-848) that heartbeats, timers and classic members share.

Every change is written in the same step, so that a new coordinator can continue from the records.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kpybroker.groups.consumer import records
from kpybroker.groups.consumer.assignors import ASSIGNORS, MemberSubscription
from kpybroker.groups.consumer.group import (
    LEAVE_STATIC,
    NOTHING,
    ConsumerGroup,
    ConsumerMember,
    CurrentAssignment,
    MemberState,
    ResolvedRegex,
)
from kpybroker.groups.consumer.reconciliation import reconciled
from kpybroker.groups.consumer.subscription_regex import RegexResolution
from kpybroker.groups.ground.commands import MayDescribe
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.step import Step
from kpybroker.groups.ground.subscriptions import MetadataHashes, partitions_of, topics_of
from kpybroker.groups.ground.timers import Timers
from kpybroker.metadata.group_settings import number_of
from kpybroker.metadata.image import Image

RESOLVE_AGAIN_MS = 1_000
"""The shortest interval between evaluations of a group's regular expressions because of new topics."""


class Transitions:
    """Changes groups and writes the changes.

    - image: returns the current metadata.
    - on_all_classic: called for a group when all its members use the classic protocol, with a flag that says whether
      they must rebalance if it is converted to a classic group. Returns whether it was converted.
    """

    def __init__(
        self,
        settings: GroupSettings,
        timers: Timers,
        image: Callable[[], Image],
        on_all_classic: Callable[[ConsumerGroup, Step, bool], bool],
    ) -> None:
        self.settings = settings
        self.timers = timers
        self.image = image
        self.on_all_classic = on_all_classic
        self._hashes = MetadataHashes()

    def configure(self, settings: GroupSettings) -> None:
        """Use new settings."""
        self.settings = settings

    # -- settings -------------------------------------------------------------------------------------------------

    def _of_group(self, group_id: str, name: str, default: int, low: int, high: int) -> int:
        """The value of a setting for this group, within the broker's limits."""
        return number_of(self.image(), group_id, name, default, low, high)

    def session_timeout_ms(self, group_id: str) -> int:
        known = self.settings
        return self._of_group(
            group_id,
            "consumer.session.timeout.ms",
            known.consumer_session_timeout_ms,
            known.consumer_min_session_timeout_ms,
            known.consumer_max_session_timeout_ms,
        )

    def heartbeat_interval_ms(self, group_id: str) -> int:
        known = self.settings
        return self._of_group(
            group_id,
            "consumer.heartbeat.interval.ms",
            known.consumer_heartbeat_interval_ms,
            known.consumer_min_heartbeat_interval_ms,
            known.consumer_max_heartbeat_interval_ms,
        )

    def _assignment_interval_ms(self, group_id: str) -> int:
        known = self.settings
        return self._of_group(
            group_id,
            "consumer.assignment.interval.ms",
            known.consumer_assignment_interval_ms,
            known.consumer_min_assignment_interval_ms,
            known.consumer_max_assignment_interval_ms,
        )

    # -- topics ---------------------------------------------------------------------------------------------------

    def partitions(self, names: frozenset[str]) -> dict[bytes, int]:
        """The number of partitions of each existing topic or view, by topic id."""
        return partitions_of(self.image().topic, names)

    def _hash(self, group: ConsumerGroup) -> int:
        image = self.image()
        return self._hashes.of(image, topics_of(image.topic, group.topics()))

    def refresh(self, group: ConsumerGroup, step: Step, *, changed: bool) -> None:
        """Bump the group's epoch if its subscriptions or their topics have changed."""
        image = self.image()
        if not changed and group.seen is image:
            return
        group.compared_with(image)
        told = self._hash(group)
        if changed or told != group.metadata_hash:
            group.bump(told)
            step.write(records.epoch_record(group))

    # -- regular expressions --------------------------------------------------------------------------------------

    def resolve(self, group: ConsumerGroup, at_ms: int, may_describe: MayDescribe | None) -> None:
        """Evaluate the group's regular expressions soon, but not within this step.

        As in Apache Kafka, the rights of the member whose heartbeat causes the evaluation apply to all members: only
        topics that this member may describe match.
        """
        begin = partial(self._begin_to_resolve, group, may_describe)
        timer = group.resolving or group.resolving_timer(begin)
        if timer.at_ms is None or timer.at_ms > at_ms:
            timer.then(begin)
            self.timers.set(timer, at_ms)

    def try_again(self, group: ConsumerGroup, may_describe: MayDescribe | None, now_ms: int) -> None:
        """Evaluate the group's regular expressions if there are new topics, or if ACLs may have changed since
        group.consumer.regex.refresh.interval.ms."""
        topics = self.image().readable
        is_due = may_describe is not None and group.tried_at_ms is not None
        is_due = is_due and now_ms >= (group.tried_at_ms or 0) + self.settings.consumer_regex_refresh_interval_ms
        if group.tried is topics and not is_due:
            return
        if not any(group.regexes()):
            group.tried_on(topics, None)
            return
        if group.tried is None or group.tried.keys() != topics.keys():
            again_ms = now_ms if group.resolved_at_ms is None else group.resolved_at_ms + RESOLVE_AGAIN_MS
            self.resolve(group, max(now_ms, again_ms), may_describe)
        elif is_due:
            self.resolve(group, now_ms, may_describe)
        else:
            group.tried_on(topics, group.tried_at_ms)

    def _begin_to_resolve(self, group: ConsumerGroup, may_describe: MayDescribe | None, step: Step) -> None:
        image = self.image()
        group.tried_on(image.readable, step.now_ms)
        resolving = RegexResolution(group.regexes(), image.readable, may_describe)
        self._resolve_on(group, resolving, image.offset, step)

    def _resolve_on(self, group: ConsumerGroup, resolving: RegexResolution, version: int, step: Step) -> None:
        assert group.resolving is not None
        found = resolving.step()
        if found is None:
            group.resolving.then(partial(self._resolve_on, group, resolving, version))
            self.timers.set(group.resolving, step.now_ms)
            return
        changed = False
        used = set(group.regexes())
        for regex, topics in found.items():
            known = group.resolved.get(regex)
            if regex in used and (known is None or known.topics != topics):
                changed = changed or topics != (known.topics if known else set())
                resolved = ResolvedRegex(frozenset(topics), version, step.wall_ms)
                group.resolve(regex, resolved, step.now_ms)
                step.write(records.regex_record(group.group_id, regex, resolved))
        if changed:
            self.refresh(group, step, changed=True)
        if used - resolving.regexes:
            self.resolve(group, step.now_ms, resolving.may_describe)

    def drop_unused(self, group: ConsumerGroup, regex: str, step: Step) -> None:
        """Delete a regular expression that no member uses."""
        if regex in group.resolved and regex not in group.regexes():
            del group.resolved[regex]
            step.write(records.regex_record(group.group_id, regex, None))

    # -- assignments ----------------------------------------------------------------------------------------------

    def assignor(self, group: ConsumerGroup) -> str:
        """The assignor that most members request; by default, the first one in the settings."""
        votes: dict[str, int] = {}
        for member in group.members.values():
            if member.server_assignor in self.settings.consumer_assignors:
                votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
        return max(votes, key=lambda name: votes[name]) if votes else self.settings.consumer_assignors[0]

    def retarget(self, group: ConsumerGroup, step: Step) -> None:
        """Compute a new target assignment if the group has changed and the assignment interval has passed."""
        if group.epoch <= group.assignment_epoch:
            return
        interval_ms = self._assignment_interval_ms(group.group_id)
        if group.decided_at_ms is None:  # another coordinator computed the assignment, or there is none yet
            passed_ms = min(max(step.wall_ms - group.assigned_at_ms, 0), interval_ms)
            group.decided(step.now_ms - passed_ms)
        assert group.decided_at_ms is not None
        if step.now_ms < group.decided_at_ms + interval_ms:
            return
        partitions: dict[bytes, int] = {}
        ids: dict[tuple[tuple[str, ...], str], frozenset[bytes]] = {}
        wishes = {}
        for member_id, member in group.members.items():
            subscription = member.names, member.regex
            topics = ids.get(subscription)
            if topics is None:
                found = self.partitions(group.wanted(member))
                partitions.update(found)
                topics = ids[subscription] = frozenset(found)
            wishes[member_id] = MemberSubscription(topics, group.targets.get(member_id, NOTHING), member.instance_id)
        plan = ASSIGNORS[self.assignor(group)](wishes, partitions)
        for member_id, target in plan.items():
            if group.targets.get(member_id, NOTHING) != target:
                group.targets[member_id] = target
                step.write(records.target_record(group.group_id, member_id, target))
        group.assigned(group.epoch, step.wall_ms, step.now_ms)
        step.write(records.target_epoch_record(group))

    def reconcile(
        self, group: ConsumerGroup, member: ConsumerMember, owned: frozenset[tuple[bytes, int]] | None, step: Step
    ) -> None:
        """Move a member one step closer to its target, and start its timer if it must revoke partitions."""
        current = reconciled(group, member, self.partitions(group.wanted(member)), owned)
        if current == member.current:
            return
        self.hold(group, member, current, step)
        if current.state is MemberState.UNREVOKED_PARTITIONS:
            if member.classic is None:
                self.begin_to_wait(group, member, step)
        elif member.rebalance is not None:
            member.rebalance.cancel()

    def hold(self, group: ConsumerGroup, member: ConsumerMember, current: CurrentAssignment, step: Step) -> None:
        group.hold(member, current)
        step.write(records.current_record(group.group_id, member))

    # -- members --------------------------------------------------------------------------------------------------

    def begin_session(self, group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> None:
        """Restart the member's session."""
        session = member.session or member.session_timer(partial(self._late, group, member))
        if member.classic is None:
            timeout_ms = self.session_timeout_ms(group.group_id)
        else:
            timeout_ms = member.classic.session_timeout_ms
        self.timers.set(session, now_ms + timeout_ms)

    def begin_to_wait(self, group: ConsumerGroup, member: ConsumerMember, step: Step) -> None:
        """Start the rebalance timeout. By its end, the member must have revoked its partitions; a classic member must
        have joined again."""
        timer = member.rebalance or member.rebalance_timer(partial(self._late, group, member))
        if timer.at_ms is None or member.classic is None:
            self.timers.set(timer, step.now_ms + max(member.rebalance_timeout_ms, 0))

    def wait_for_sync(self, group: ConsumerGroup, member: ConsumerMember, step: Step) -> None:
        """Start the rebalance timeout. By its end, a classic member must have sent SyncGroup."""
        timer = member.sync_timer(partial(self._late, group, member))
        self.timers.set(timer, step.now_ms + max(member.rebalance_timeout_ms, 0))

    def _late(self, group: ConsumerGroup, member: ConsumerMember, step: Step) -> None:
        if group.members.get(member.member_id) is member:
            self.remove(group, [member], step)

    def remove(self, group: ConsumerGroup, members: list[ConsumerMember], step: Step) -> None:
        """Remove members that left or timed out. Their partitions become free."""
        for member in members:
            group.remove(member)
            for record in records.member_tombstones(group.group_id, member.member_id):
                step.write(record)
            self.drop_unused(group, member.regex, step)
        if group.all_classic and self.on_all_classic(group, step, True):
            return
        group.bump(self._hash(group))
        step.write(records.epoch_record(group))

    def leave_for_a_while(self, group: ConsumerGroup, member: ConsumerMember, step: Step) -> None:
        """Keep the partitions of a static member that leaves but intends to return (KIP-345), until its session
        expires."""
        if member.rebalance is not None:
            member.rebalance.cancel()
        kept = dict.fromkeys(member.current.assigned, 0)
        self.hold(group, member, CurrentAssignment(LEAVE_STATIC, member.current.epoch, MemberState.STABLE, kept), step)

    def replace(self, group: ConsumerGroup, earlier: ConsumerMember, member_id: str, step: Step) -> ConsumerMember:
        """Replace a static member that has rejoined with another id. The new member keeps its partitions and its
        target."""
        member = earlier.replaced_by(member_id)
        target = group.targets.get(earlier.member_id, NOTHING)
        group.remove(earlier)
        for record in records.member_tombstones(group.group_id, earlier.member_id):
            step.write(record)
        group.add(member)
        group.targets[member_id] = target
        step.write(records.member_record(group.group_id, member))
        step.write(records.target_record(group.group_id, member_id, target))
        step.write(records.current_record(group.group_id, member))
        return member
