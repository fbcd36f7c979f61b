"""The records of `__cluster_metadata`, and the frame of each record, which contains its key and version.

Source: KIP-631 for the records and the frame, KIP-858 (directories), KIP-966 (eligible leader replicas).
"""

from typing import Any

from kpybroker.errors import Damage, MalformedFrame
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.codec.message import field, key_of, last_version, message, part
from kpybroker.wire.codec.primitives import (
    ZERO_UUID,
    Int8,
    Int16,
    Int32,
    Int64,
    Uint16,
    Uuid,
    read_uvarint,
    write_uvarint,
)


@part
class BrokerEndpoint:
    name: str = ""
    host: str = ""
    port: Uint16 = 0
    security_protocol: Int16 = 0


@part
class BrokerFeature:
    name: str = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@message("0-4", flexible=0, key=0)
class RegisterBrokerRecord:
    broker_id: Int32 = 0
    is_migrating_zk_broker: bool = field("2+")
    incarnation_id: Uuid = ZERO_UUID
    broker_epoch: Int64 = 0
    end_points: list[BrokerEndpoint] = []
    features: list[BrokerFeature] = []
    rack: str | None = ""
    fenced: bool = True
    in_controlled_shutdown: bool = field("1+")
    log_dirs: list[Uuid] = field("3+", tag=0)
    cordoned_log_dirs: list[Uuid] | None = field("4+", tag=1)


@message("0", flexible=0, key=1)
class UnregisterBrokerRecord:
    broker_id: Int32 = 0
    broker_epoch: Int64 = 0


@message("0", flexible=0, key=2)
class TopicRecord:
    name: str = ""
    topic_id: Uuid = ZERO_UUID


@message("0-2", flexible=0, key=3)
class PartitionRecord:
    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_UUID
    replicas: list[Int32] = []
    isr: list[Int32] = []
    removing_replicas: list[Int32] = []
    adding_replicas: list[Int32] = []
    leader: Int32 = -1
    leader_recovery_state: Int8 = field(tag=0)
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: list[Uuid] = field("1+")
    eligible_leader_replicas: list[Int32] | None = field("2+", tag=1)
    last_known_elr: list[Int32] | None = field("2+", tag=2)


@message("0", flexible=0, key=4)
class ConfigRecord:
    resource_type: Int8 = 0
    resource_name: str = ""
    name: str = ""
    value: str | None = ""


@message("0-2", flexible=0, key=5)
class PartitionChangeRecord:
    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_UUID
    isr: list[Int32] | None = field(tag=0)
    leader: Int32 = field(default=-2, tag=1)
    replicas: list[Int32] | None = field(tag=2)
    removing_replicas: list[Int32] | None = field(tag=3)
    adding_replicas: list[Int32] | None = field(tag=4)
    leader_recovery_state: Int8 = field(default=-1, tag=5)
    directories: list[Uuid] | None = field("1+", tag=8)
    eligible_leader_replicas: list[Int32] | None = field("2+", tag=6)
    last_known_elr: list[Int32] | None = field("2+", tag=7)


@message("0", flexible=0, key=7)
class FenceBrokerRecord:
    id: Int32 = 0
    epoch: Int64 = 0


@message("0", flexible=0, key=8)
class UnfenceBrokerRecord:
    id: Int32 = 0
    epoch: Int64 = 0


@message("0", flexible=0, key=9)
class RemoveTopicRecord:
    topic_id: Uuid = ZERO_UUID


@message("0", flexible=0, key=10)
class DelegationTokenRecord:
    owner: str = ""
    requester: str = ""
    renewers: list[str] = []
    issue_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    expiration_timestamp: Int64 = 0
    token_id: str = ""


@message("0", flexible=0, key=11)
class UserScramCredentialRecord:
    name: str = ""
    mechanism: Int8 = 0
    salt: bytes = b""
    stored_key: bytes = b""
    server_key: bytes = b""
    iterations: Int32 = 0


@message("0", flexible=0, key=12)
class FeatureLevelRecord:
    name: str = ""
    feature_level: Int16 = 0


@part
class EntityData:
    entity_type: str = ""
    entity_name: str | None = ""


@message("0", flexible=0, key=14)
class ClientQuotaRecord:
    entity: list[EntityData] = []
    key: str = ""
    value: float = 0.0
    remove: bool = False


@message("0", flexible=0, key=15)
class ProducerIdsRecord:
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    next_producer_id: Int64 = 0


@message("0-3", flexible=0, key=17)
class BrokerRegistrationChangeRecord:
    broker_id: Int32 = 0
    broker_epoch: Int64 = 0
    fenced: Int8 = field(tag=0)
    in_controlled_shutdown: Int8 = field("1+", tag=1)
    log_dirs: list[Uuid] = field("2+", tag=2)
    cordoned_log_dirs: list[Uuid] | None = field("3+", tag=3)


@message("0", flexible=0, key=18)
class AccessControlEntryRecord:
    id: Uuid = ZERO_UUID
    resource_type: Int8 = 0
    resource_name: str = ""
    pattern_type: Int8 = 0
    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@message("0", flexible=0, key=19)
class RemoveAccessControlEntryRecord:
    id: Uuid = ZERO_UUID


@message("0", flexible=0, key=20)
class NoOpRecord:
    pass


@message("0", flexible=0, key=21)
class ZkMigrationStateRecord:
    zk_migration_state: Int8 = 0


@message("0", flexible=0, key=22)
class RemoveUserScramCredentialRecord:
    name: str = ""
    mechanism: Int8 = 0


@message("0", flexible=0, key=23)
class BeginTransactionRecord:
    name: str | None = field(tag=0)


@message("0", flexible=0, key=24)
class EndTransactionRecord:
    pass


@message("0", flexible=0, key=25)
class AbortTransactionRecord:
    reason: str | None = field(tag=0)


@message("0", flexible=0, key=26)
class RemoveDelegationTokenRecord:
    token_id: str = ""


@part
class ControllerEndpoint:
    name: str = ""
    host: str = ""
    port: Uint16 = 0
    security_protocol: Int16 = 0


@part
class ControllerFeature:
    name: str = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@message("0", flexible=0, key=27)
class RegisterControllerRecord:
    controller_id: Int32 = 0
    incarnation_id: Uuid = ZERO_UUID
    zk_migration_ready: bool = False
    end_points: list[ControllerEndpoint] = []
    features: list[ControllerFeature] = []


@message("0", flexible=0, key=28)
class ClearElrRecord:
    topic_name: str = ""


FRAME_VERSION = 1

RECORDS = (
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
    TopicRecord,
    PartitionRecord,
    ConfigRecord,
    PartitionChangeRecord,
    FenceBrokerRecord,
    UnfenceBrokerRecord,
    RemoveTopicRecord,
    DelegationTokenRecord,
    UserScramCredentialRecord,
    FeatureLevelRecord,
    ClientQuotaRecord,
    ProducerIdsRecord,
    BrokerRegistrationChangeRecord,
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    NoOpRecord,
    ZkMigrationStateRecord,
    RemoveUserScramCredentialRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    AbortTransactionRecord,
    RemoveDelegationTokenRecord,
    RegisterControllerRecord,
    ClearElrRecord,
)
"""All record types, in the order of their keys."""

by_key: dict[int, Any] = {key_of(record): record for record in RECORDS}


def frame_record(record: Any, version: int | None = None) -> bytes:
    """Encode a record for the metadata log, in its highest version, which belongs to metadata.version 4.3-IV0."""
    cls = type(record)
    if version is None:
        version = last_version(cls)
    head = write_uvarint(FRAME_VERSION) + write_uvarint(key_of(cls)) + write_uvarint(version)
    return head + build(record, version)


def frame_of(data: bytes | memoryview) -> tuple[int, int, int]:
    """The version of the frame, the type of the record, and its version. Raises Damage."""
    try:
        frame_version, pos = read_uvarint(data, 0)
        key, pos = read_uvarint(data, pos)
        return frame_version, key, read_uvarint(data, pos)[0]
    except (IndexError, MalformedFrame) as reason:
        raise Damage(f"a metadata record that cannot be read: {reason}") from None


def is_known(frame_version: int, key: int, version: int) -> bool:
    """Whether this version of kpybroker can read such a record."""
    cls = by_key.get(key)
    return frame_version == FRAME_VERSION and cls is not None and version <= last_version(cls)


def unframe_record(data: bytes | memoryview) -> Any:
    """Parse the record in a frame. Raises Damage if this version of kpybroker does not support the record or cannot
    read it."""
    try:
        frame_version, pos = read_uvarint(data, 0)
        key, pos = read_uvarint(data, pos)
        version, pos = read_uvarint(data, pos)
        cls = by_key.get(key)
        if frame_version != FRAME_VERSION or cls is None or version > last_version(cls):
            raise Damage(
                f"a metadata record of type {key}, version {version}, which this version of kpybroker does not "
                "support: a newer Apache Kafka or kpybroker wrote it; use a newer kpybroker"
            )
        return parse(cls, version, data, pos)
    except (IndexError, MalformedFrame) as reason:
        raise Damage(f"a metadata record that cannot be read: {reason}") from None
