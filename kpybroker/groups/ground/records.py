"""Records of `__consumer_offsets` in Kafka's schemas: what the group machine writes, and reads back.

A key begins with the kind of record (int16), a value with its version (int16); versions are those Kafka 4.3 writes.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from kpybroker.errors import MalformedFrame
from kpybroker.groups.classic.group import ClassicGroup, Member, State
from kpybroker.groups.offsets.offsets import Committed, Place
from kpybroker.machine.contract import Stored
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.stored.group import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)

LEGACY_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1
GROUP_METADATA = 2
FOREIGN_GROUP_METADATA = {11: "share", 17: "streams"}
"""Kinds of record that say that a group exists which is kept by another protocol, and its type."""

_KEY_VERSION = 0
_GROUP_VERSION = 3
_COMMIT_VERSION = 4
_EXPIRING_COMMIT_VERSION = 1
"""The one version with an expiry time, which clients that give a retention time ask for."""
_HIGHEST_VERSION = 4
"""Of either kind of value, the highest that Kafka 4.3 reads."""
NO_TOPIC_ID = bytes(16)
_PARTITION_BYTES = 4
_first_int16 = Struct(">h").unpack_from
_USUAL = Struct(">hqiBq3s16s")
"""The value of a commit as it mostly is, read at once since a replay reads thousands: the version, the offset, the
leader epoch, the size of the metadata, the time, the mark of a topic id, that id."""
_NO_METADATA, _TOPIC_ID_FOLLOWS = 1, b"\x01\x00\x10"


def kind_of(key: bytes) -> int:
    """The kind of a record; -1 where the key is too short to say."""
    return _first_int16(key)[0] if len(key) >= 2 else -1


Commit = tuple[str, Place, Committed | None]
"""What an offset commit says of a group; rides on a record just written, so that it need not be read back from the
bytes."""


def _group_key(group_id: str) -> bytes:
    return _versioned(GROUP_METADATA, build(GroupMetadataKey(group=group_id), _KEY_VERSION))


def _versioned(version: int, body: bytes) -> bytes:
    return version.to_bytes(2, "big") + body


def group_record(group: ClassicGroup) -> Stored:
    """The group as it is: the generation, its protocol and leader, every member with its assignment."""
    protocol = group.protocol
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=protocol,
        leader=group.leader,
        current_state_timestamp=-1 if group.state_since_ms is None else group.state_since_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(protocol or ""),
                assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )
    return Stored(_group_key(group.group_id), _versioned(_GROUP_VERSION, build(value, _GROUP_VERSION)))


def group_tombstone(group_id: str) -> Stored:
    return Stored(_group_key(group_id), None)


def read_group_id(key: bytes) -> str:
    """The group of a GroupMetadata record, and of every kind that FOREIGN_GROUP_METADATA names."""
    return parse(GroupMetadataKey, _KEY_VERSION, key, 2).group


def read_group(group_id: str, value: bytes, wall_ms: int) -> ClassicGroup:
    """The group that a GroupMetadata record keeps, stable if it has members; sessions are the caller's to start."""
    said = parse(GroupMetadataValue, _version_of(value, _HIGHEST_VERSION), value, 2)
    group = ClassicGroup(group_id, wall_ms)
    for each in said.members:
        member = Member(each.member_id, each.group_instance_id, each.client_id, each.client_host)
        member.is_new = False
        member.session_timeout_ms = each.session_timeout
        member.rebalance_timeout_ms = each.rebalance_timeout if each.rebalance_timeout >= 0 else each.session_timeout
        member.protocols = ((said.protocol or "", bytes(each.subscription)),)
        member.assignment = bytes(each.assignment)
        group.add(member, said.protocol_type)
    if group.members:
        group.state = State.STABLE
    if said.leader in group.members:
        group.leader = said.leader
    group.protocol_type = said.protocol_type or None
    group.protocol = said.protocol
    group.generation = said.generation
    group.state_since_ms = None if said.current_state_timestamp < 0 else said.current_state_timestamp
    return group


def commit_record(group_id: str, place: Place, committed: Committed | None) -> Stored:
    """One committed offset; without it, a tombstone."""
    key = build(OffsetCommitKey(group=group_id, topic=place[0], partition=place[1]), _KEY_VERSION)
    message = (group_id, place, committed)
    if committed is None:
        return Stored(_versioned(OFFSET_COMMIT, key), None, message=message)
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
        topic_id=committed.topic_id,
    )
    version = _COMMIT_VERSION if committed.expire_timestamp_ms < 0 else _EXPIRING_COMMIT_VERSION
    return Stored(_versioned(OFFSET_COMMIT, key), _versioned(version, build(value, version)), message=message)


def read_commit(record: Stored) -> Commit:
    """What an offset commit of either kind says. Raises MalformedFrame."""
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
        old = parse(LegacyOffsetCommitValue, _version_of(value, 0), value, 2)
        return group, place, Committed(old.offset, -1, old.metadata, old.commit_timestamp, -1, NO_TOPIC_ID)
    if len(value) == _USUAL.size:
        version, offset, leader_epoch, metadata, commit_timestamp_ms, mark, topic_id = _USUAL.unpack(value)
        if version == _COMMIT_VERSION and metadata == _NO_METADATA and mark == _TOPIC_ID_FOLLOWS:
            usual = (offset, leader_epoch, "", commit_timestamp_ms, -1, topic_id)
            return group, place, tuple.__new__(Committed, usual)  # Committed(...) is a function in Python
    new = parse(OffsetCommitValue, _version_of(value, _HIGHEST_VERSION), value, 2)
    committed = Committed(
        new.offset, new.leader_epoch, new.metadata, new.commit_timestamp, new.expire_timestamp, new.topic_id
    )
    return group, place, committed


@lru_cache(maxsize=1000)
def _named(key_without_partition: bytes) -> tuple[str, str]:
    """Group and topic: read once for a batch that commits many partitions, and kept in memory once."""
    named = parse(OffsetCommitKey, _KEY_VERSION, key_without_partition + bytes(_PARTITION_BYTES), 2)
    return named.group, named.topic


def _version_of(value: bytes, highest: int) -> int:
    version = kind_of(value)
    if not 0 <= version <= highest:
        raise MalformedFrame(f"its value has version {version}, versions up to {highest} are known")
    return version
