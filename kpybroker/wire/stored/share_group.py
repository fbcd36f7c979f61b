"""The records of `__consumer_offsets` about share groups (KIP-932)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int8, Int32, Int64, Uuid


@message("0", key=10)
class ShareGroupMemberMetadataKey:
    group_id: str = ""
    member_id: str = ""


@message("0", flexible=0)
class ShareGroupMemberMetadataValue:
    rack_id: str | None = ""
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []


@message("0", key=11)
class ShareGroupMetadataKey:
    group_id: str = ""


@message("0", flexible=0)
class ShareGroupMetadataValue:
    epoch: Int32 = 0
    metadata_hash: Int64 = 0


@message("0", key=12)
class ShareGroupTargetAssignmentMetadataKey:
    group_id: str = ""


@message("0", flexible=0)
class ShareGroupTargetAssignmentMetadataValue:
    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field(tag=0)


@message("0", key=13)
class ShareGroupTargetAssignmentMemberKey:
    group_id: str = ""
    member_id: str = ""


@part
class TopicPartition:
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


@message("0", flexible=0)
class ShareGroupTargetAssignmentMemberValue:
    topic_partitions: list[TopicPartition] = []


@message("0", key=14)
class ShareGroupCurrentMemberAssignmentKey:
    group_id: str = ""
    member_id: str = ""


@part
class TopicPartitions:
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


@message("0", flexible=0)
class ShareGroupCurrentMemberAssignmentValue:
    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[TopicPartitions] = []


@message("0", key=15)
class ShareGroupStatePartitionMetadataKey:
    group_id: str = ""


@part
class TopicPartitionsInfo:
    topic_id: Uuid = ZERO_UUID
    topic_name: str = ""
    partitions: list[Int32] = []


@part
class TopicInfo:
    topic_id: Uuid = ZERO_UUID
    topic_name: str = ""


@message("0", flexible=0)
class ShareGroupStatePartitionMetadataValue:
    initializing_topics: list[TopicPartitionsInfo] = []
    initialized_topics: list[TopicPartitionsInfo] = []
    deleting_topics: list[TopicInfo] = []
