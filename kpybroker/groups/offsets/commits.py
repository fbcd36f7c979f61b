"""Commits, deletes and expires offsets for any kind of group. It writes records, which change the offsets when applied.

Expiry (KIP-211): the offsets of a group without members expire one retention time after it became empty. In a group
with members, the offsets of topics to which it no longer subscribes expire one retention time after their commit, like
offsets that were committed without a group's members.
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
from kpybroker.metadata.retirements import retired_name

LAST_MS = (1 << 63) - 1
"""The highest timestamp of a record."""
STEP_BYTES = 256 * 1024
"""Background work writes about this much in one step, so that the event loop is never blocked for long."""


def commit(command: CommitOffsets, settings: GroupSettings, step: Step) -> list[ErrorCode]:
    """Write the offsets that may be committed. Returns a code for each partition, in order. Within a transaction, the
    topic id is omitted, as in Kafka."""
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
        raise KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, "more offsets than fit into one batch")
    return codes


def delete(
    group: Group, command: DeleteOffsets, offsets: Offsets, settings: GroupSettings, step: Step
) -> frozenset[str]:
    """Delete offsets. Returns the topics to which the group subscribes, or to their retired partitions; their offsets
    stay."""
    group.check_delete_offsets()
    first = len(step.records)
    of_group = offsets.of(group.group_id)
    kept = frozenset(topic for topic, _ in command.topics if any(map(group.subscribes, _names(topic))))
    for topic, partitions in command.topics:
        if topic in kept:
            continue
        for partition in dict.fromkeys(partitions):
            if (topic, partition) in of_group or offsets.pending.has(group.group_id, (topic, partition)):
                step.write(commit_record(group.group_id, (topic, partition), None))
    if step.size_bytes > settings.max_batch_bytes:
        del step.records[first:]
        raise KafkaError(ErrorCode.INVALID_REQUEST, "more offsets than fit into one batch")
    return kept


def expire(group: Group, offsets: Offsets, settings: GroupSettings, step: Step) -> bool:
    """Delete as many expired offsets as one step may write. Returns True if the group has no offsets left.

    Offsets that an open transaction may change stay.
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
        is_used = any(name in in_use for name in _names(place[0]))
        if not is_used and committed.expired(unused_since_ms, step.wall_ms, settings.offsets_retention_ms):
            step.write(commit_record(group.group_id, place, None))
            gone += 1
            if step.size_bytes >= STEP_BYTES:
                break
    return gone == len(of_group) and not undecided


def _names(topic: str) -> tuple[str, str]:
    """The names of topics whose offsets are stored for this topic: also those of its retired partitions."""
    return topic, retired_name(topic)


def drop_all(group_id: str, offsets: Offsets, step: Step) -> bool:
    """Delete as many offsets of a group as one step may write. Returns True if none are left."""
    for place in dict.fromkeys((*offsets.of(group_id), *offsets.pending.of(group_id))):
        if step.size_bytes >= STEP_BYTES:
            return False
        step.write(commit_record(group_id, place, None))
    return True


def drop_topics(topics: Mapping[str, bytes], offsets: Offsets, step: Step) -> bool:
    """Delete as many offsets of topics with these ids as one step may write. Returns True if none are left."""
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
