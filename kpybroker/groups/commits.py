"""What may be done with committed offsets, and when they expire: looks only; the records say what changes.

Expiry (KIP-211): offsets of a group without members expire a retention time after it became empty; of a group in use,
those of topics it no longer subscribes to, a retention time after their commit; offsets committed outside any group, a
retention time after their commit.
"""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.classic.group import CONSUMER, ClassicGroup, GroupState
from kpybroker.groups.consumer.group import ConsumerGroup
from kpybroker.groups.ground.commands import CommitOffsets, DeleteOffsets
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.step import Step
from kpybroker.groups.offsets.committed import Committed
from kpybroker.groups.offsets.offsets import Offsets
from kpybroker.groups.offsets.records import NO_TOPIC_ID, commit_record
from kpybroker.metadata.hashing import java_length

LAST_MS = (1 << 63) - 1
"""The last moment that a record has a place for."""
STEP_BYTES = 256 * 1024
"""Background work writes about this much in one step, so that the loop never stalls for long."""


def check_commit(group: ClassicGroup, command: CommitOffsets) -> None:
    """Raises the refusal of an OffsetCommit or TxnOffsetCommit, if there is one.

    A transaction may commit while the group rebalances; and without a word of member and generation, which the first
    versions of TxnOffsetCommit do not know.
    """
    if command.generation < 0 and group.state is GroupState.EMPTY:
        return
    if command.generation >= 0 or command.member_id or command.instance_id is not None:
        group.validate(command.member_id, command.instance_id)
        if command.generation != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"the generation is {group.generation}")
    elif group.state is not GroupState.EMPTY and command.transaction is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has members: only they may commit")
    if group.state is GroupState.COMPLETING_REBALANCE and command.transaction is None:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the generation has no assignment yet")


def check_modern_commit(group: ConsumerGroup, command: CommitOffsets) -> None:
    """Raises the refusal of an OffsetCommit or TxnOffsetCommit to a consumer group, if there is one."""
    places = [(topic_id, each.partition) for _, topic_id, partitions in command.topics for each in partitions]
    if command.transaction is None:
        group.check_commit(command.member_id, command.generation, places, knows_epochs=command.knows_group_id_not_found)
    elif command.generation >= 0 or command.member_id or command.instance_id is not None:
        try:
            group.check_commit(command.member_id, command.generation, places, knows_epochs=True)
        except KafkaError as refusal:
            if refusal.code != ErrorCode.STALE_MEMBER_EPOCH:
                raise
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, refusal.message) from refusal


def commit(command: CommitOffsets, settings: GroupSettings, step: Step) -> list[ErrorCode]:
    """Write what may be committed; a code for each partition, in order. In a transaction without the topic's id, as
    Kafka does."""
    codes = []
    first = len(step.records)
    expires_ms = min(step.wall_ms + command.retention_ms, LAST_MS) if command.retention_ms >= 0 else -1
    for topic, topic_id, partitions in command.topics:
        known_id = topic_id if command.transaction is None else NO_TOPIC_ID
        for each in partitions:
            if java_length(each.metadata) > settings.offset_metadata_max_bytes:
                codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            committed = Committed(each.offset, each.leader_epoch, each.metadata, step.wall_ms, expires_ms, known_id)
            record = commit_record(command.group_id, (topic, each.partition), committed)
            record.transaction = command.transaction
            step.write(record)
            codes.append(ErrorCode.NONE)
    if step.size_bytes > settings.max_batch_bytes:
        del step.records[first:]
        raise KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, "more offsets than one batch may hold")
    return codes


def delete(
    group: ClassicGroup | ConsumerGroup, command: DeleteOffsets, offsets: Offsets, settings: GroupSettings, step: Step
) -> frozenset[str]:
    """Forget offsets; the topics that the group is subscribed to keep theirs and are returned."""
    if isinstance(group, ClassicGroup) and group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "what the members use cannot be known")
    first = len(step.records)
    of_group = offsets.of(group.group_id)
    kept = frozenset(topic for topic, _ in command.topics if group.subscribes(topic))
    for topic, partitions in command.topics:
        if topic in kept:
            continue
        for partition in dict.fromkeys(partitions):
            if (topic, partition) in of_group or offsets.pending.has(group.group_id, (topic, partition)):
                step.write(commit_record(group.group_id, (topic, partition), None))
    if step.size_bytes > settings.max_batch_bytes:
        del step.records[first:]
        raise KafkaError(ErrorCode.INVALID_REQUEST, "more offsets than one batch may hold")
    return kept


def expire(group: ClassicGroup | ConsumerGroup, offsets: Offsets, settings: GroupSettings, step: Step) -> bool:
    """Forget what has expired, as much as a step may write; True if nothing is left.

    What a transaction may change stays.
    """
    of_group = offsets.of(group.group_id)
    undecided = frozenset(offsets.pending.of(group.group_id))
    if not of_group:
        return not undecided
    in_use, empty_since_ms = _use(group)
    if in_use is None:
        return False
    gone = 0
    for place, committed in of_group.items():
        if place in undecided:
            continue
        unused_since_ms = committed.commit_timestamp_ms if empty_since_ms is None else empty_since_ms
        if place[0] not in in_use and committed.expired(unused_since_ms, step.wall_ms, settings.offsets_retention_ms):
            step.write(commit_record(group.group_id, place, None))
            gone += 1
            if step.size_bytes >= STEP_BYTES:
                break
    return gone == len(of_group) and not undecided


def _use(group: ClassicGroup | ConsumerGroup) -> tuple[frozenset[str] | None, int | None]:
    """The topics in use, None where that cannot be known; and since when the group is empty, where that counts."""
    if isinstance(group, ConsumerGroup):
        return group.topics(), None
    if group.protocol_type is None:
        return frozenset(), None
    if group.state is GroupState.EMPTY:
        return frozenset(), group.state_since_ms
    return (group.topics() if group.state is GroupState.STABLE else None), None


def drop_all(group_id: str, offsets: Offsets, step: Step) -> bool:
    """Forget everything of a group, as much as a step may write; True if nothing is left."""
    for place in dict.fromkeys((*offsets.of(group_id), *offsets.pending.of(group_id))):
        if step.size_bytes >= STEP_BYTES:
            return False
        step.write(commit_record(group_id, place, None))
    return True


def drop_topics(topics: Mapping[str, bytes], offsets: Offsets, step: Step) -> bool:
    """Forget what was committed for topics with these ids, as much as a step may write; True if nothing is left."""
    for group_id in offsets.groups():
        for place, committed in offsets.of(group_id).items():
            deleted = topics.get(place[0])
            if deleted is None or committed.topic_id not in (deleted, NO_TOPIC_ID):
                continue
            if step.size_bytes >= STEP_BYTES:
                return False
            step.write(commit_record(group_id, place, None))
    for group_id in offsets.pending.groups():
        for place in offsets.pending.of(group_id):
            if place[0] in topics and place not in offsets.of(group_id):
                if step.size_bytes >= STEP_BYTES:
                    return False
                step.write(commit_record(group_id, place, None))
    return True
