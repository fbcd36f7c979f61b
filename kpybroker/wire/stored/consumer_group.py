"""The records of `__consumer_offsets` about consumer groups (KIP-848)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int8, Int32, Int64, Uuid


@message("0", key=3)
class ConsumerGroupMetadataKey:
    group_id: str = ""


@message("0", flexible=0)
class ConsumerGroupMetadataValue:
    epoch: Int32 = 0
    metadata_hash: Int64 = field(tag=0)


@message("0", key=4)
class ConsumerGroupPartitionMetadataKey:
    group_id: str = ""


@part
class PartitionMetadata:
    partition: Int32 = 0
    racks: list[str] = []


@part
class TopicMetadata:
    topic_id: Uuid = ZERO_UUID
    topic_name: str = ""
    num_partitions: Int32 = 0
    partition_metadata: list[PartitionMetadata] = []


@message("0", flexible=0)
class ConsumerGroupPartitionMetadataValue:
    topics: list[TopicMetadata] = []


@message("0", key=5)
class ConsumerGroupMemberMetadataKey:
    group_id: str = ""
    member_id: str = ""


@part
class ClassicProtocol:
    name: str = ""
    metadata: bytes = b""


@part
class ClassicMemberMetadata:
    session_timeout_ms: Int32 = 0
    supported_protocols: list[ClassicProtocol] = []


@message("0", flexible=0)
class ConsumerGroupMemberMetadataValue:
    instance_id: str | None = ""
    rack_id: str | None = ""
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []
    subscribed_topic_regex: str | None = ""
    rebalance_timeout_ms: Int32 = -1
    server_assignor: str | None = ""
    classic_member_metadata: ClassicMemberMetadata | None = field(default=ClassicMemberMetadata, tag=0, nullable="0+")
    """None for a member that uses the consumer protocol. It is encoded as null, because Kafka reads a missing field as
    an empty structure."""


@message("0", key=6)
class ConsumerGroupTargetAssignmentMetadataKey:
    group_id: str = ""


@message("0", flexible=0)
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field(tag=0)


@message("0", key=7)
class ConsumerGroupTargetAssignmentMemberKey:
    group_id: str = ""
    member_id: str = ""


@part
class TopicPartition:
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


@message("0", flexible=0)
class ConsumerGroupTargetAssignmentMemberValue:
    topic_partitions: list[TopicPartition] = []


@message("0", key=8)
class ConsumerGroupCurrentMemberAssignmentKey:
    group_id: str = ""
    member_id: str = ""


@part
class TopicPartitions:
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []
    assignment_epochs: list[Int32] | None = field(default=[], tag=0)


@message("0", flexible=0)
class ConsumerGroupCurrentMemberAssignmentValue:
    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[TopicPartitions] = []
    partitions_pending_revocation: list[TopicPartitions] = []


@message("0", key=16)
class ConsumerGroupRegularExpressionKey:
    group_id: str = ""
    regular_expression: str = ""


@message("0", flexible=0)
class ConsumerGroupRegularExpressionValue:
    topics: list[str] = []
    version: Int64 = 0
    timestamp: Int64 = 0
