"""Writes and reads the records of committed offsets in `__consumer_offsets`."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from kpybroker.groups.ground.record_keys import (
    HIGHEST_VERSION,
    KEY_VERSION,
    LEGACY_OFFSET_COMMIT,
    OFFSET_COMMIT,
    version_of,
    versioned,
)
from kpybroker.groups.offsets.committed import Committed
from kpybroker.machine.contract import Stored
from kpybroker.topics import TopicPartition
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.stored.group import LegacyOffsetCommitValue, OffsetCommitKey, OffsetCommitValue

_COMMIT_VERSION = 4
_EXPIRING_COMMIT_VERSION = 1
"""The only version with an expiry time, for clients that send a retention time."""
NO_TOPIC_ID = bytes(16)
_PARTITION_BYTES = 4
_USUAL = Struct(">hqiBq3s16s")
"""The most common form of the value, which is unpacked in one call, because a replay reads thousands: version, offset,
leader epoch, size of the metadata, timestamp, tag of the topic id, topic id."""
_NO_METADATA, _TOPIC_ID_FOLLOWS = 1, b"\x01\x00\x10"

Commit = tuple[str, TopicPartition, Committed | None]
"""Group, partition and offset of a commit. A record that was just written has it as its message, so that it need not be
parsed."""


def commit_record(
    group_id: str,
    place: TopicPartition,
    committed: Committed | None,
    transaction: tuple[int, int] | None = None,
) -> Stored:
    """The record of a committed offset, or a tombstone if `committed` is None. `transaction`: (producer id, epoch)."""
    key = build(OffsetCommitKey(group=group_id, topic=place[0], partition=place[1]), KEY_VERSION)
    message = (group_id, place, committed)
    if committed is None:
        return Stored(versioned(OFFSET_COMMIT, key), None, message=message, transaction=transaction)
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
        topic_id=committed.topic_id,
    )
    version = _COMMIT_VERSION if committed.expire_timestamp_ms < 0 else _EXPIRING_COMMIT_VERSION
    encoded = versioned(version, build(value, version))
    return Stored(versioned(OFFSET_COMMIT, key), encoded, message=message, transaction=transaction)


def read_commit(record: Stored) -> Commit:
    """Read an offset commit of either kind. Raises MalformedFrame."""
    if record.message is not None:
        said: Commit = record.message
        return said
    key, value = record.key, record.value
    assert key is not None
    group, topic = _named(key[:-_PARTITION_BYTES])
    place = (topic, int.from_bytes(key[-_PARTITION_BYTES:], "big", signed=True))
    if value is None:
        return group, place, None
    if key[1] == LEGACY_OFFSET_COMMIT:
        old = parse(LegacyOffsetCommitValue, version_of(value, 0), value, 2)
        return group, place, Committed(old.offset, -1, old.metadata, old.commit_timestamp, -1, NO_TOPIC_ID)
    if len(value) == _USUAL.size:
        version, offset, leader_epoch, metadata, commit_timestamp_ms, mark, topic_id = _USUAL.unpack(value)
        if version == _COMMIT_VERSION and metadata == _NO_METADATA and mark == _TOPIC_ID_FOLLOWS:
            usual = (offset, leader_epoch, "", commit_timestamp_ms, -1, topic_id)
            return (
                group,
                place,
                tuple.__new__(Committed, usual),
            )  # faster than Committed(...), which runs a function written in Python
    new = parse(OffsetCommitValue, version_of(value, HIGHEST_VERSION), value, 2)
    committed = Committed(
        new.offset, new.leader_epoch, new.metadata, new.commit_timestamp, new.expire_timestamp, new.topic_id
    )
    return group, place, committed


@lru_cache(maxsize=1000)
def _named(key_without_partition: bytes) -> tuple[str, str]:
    """The group and the topic of a key. Cached, so that a batch of many partitions parses and stores them once."""
    named = parse(OffsetCommitKey, KEY_VERSION, key_without_partition + bytes(_PARTITION_BYTES), 2)
    return named.group, named.topic
