"""AssignReplicasToDirs (73): a broker reports the directories of its replicas (KIP-858)."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int16, Int32, Int64, Uuid


@part
class PartitionData:
    partition_index: Int32 = 0


@part
class TopicData:
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = []


@part
class DirectoryData:
    id: Uuid = ZERO_UUID
    topics: list[TopicData] = []


@message("0", flexible=0)
class Request:
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    directories: list[DirectoryData] = []


@part
class PartitionDataReply:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@part
class TopicDataReply:
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionDataReply] = []


@part
class DirectoryDataReply:
    id: Uuid = ZERO_UUID
    topics: list[TopicDataReply] = []


@message("0", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    directories: list[DirectoryDataReply] = []
