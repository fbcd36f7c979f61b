"""Commits, deletes and expires offsets of any kind of group: it writes records, and their replay changes the offsets.

Expiry (KIP-211): offsets of a group without members expire a retention time after it became empty; of a group in use,
those of topics it no longer subscribes to, a retention time after their commit; offsets committed outside any group, a
retention time after their commit.
"""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import CommitOffsets, DeleteOffsets
from kpybroker.groups.ground.kind import Group
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
            step.write(commit_record(command.group_id, (topic, each.partition), committed, command.transaction))
            codes.append(ErrorCode.NONE)
    if step.size_bytes > settings.max_batch_bytes:
        del step.records[first:]
        raise KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, "more offsets than one batch may hold")
    return codes


def delete(
    group: Group, command: DeleteOffsets, offsets: Offsets, settings: GroupSettings, step: Step
) -> frozenset[str]:
    """Delete offsets; the topics that the group is subscribed to keep theirs and are returned."""
    group.check_delete_offsets()
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


def expire(group: Group, offsets: Offsets, settings: GroupSettings, step: Step) -> bool:
    """Forget what has expired, as much as a step may write; True if nothing is left.

    What a transaction may change stays.
    """
    of_group = offsets.of(group.group_id)
    undecided = frozenset(offsets.pending.of(group.group_id))
    if not of_group:
        return not undecided
    in_use, empty_since_ms = group.usage()
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
