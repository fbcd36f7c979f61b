"""AlterPartition (56): a leader proposes another ISR (KIP-497), with its members' broker epochs (KIP-903)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int8, Int16, Int32, Int64, Uuid


@part
class BrokerState:
    broker_id: Int32 = field("3+")
    broker_epoch: Int64 = field("3+", default=-1)


@part
class PartitionData:
    partition_index: Int32 = 0
    leader_epoch: Int32 = 0
    new_isr: list[Int32] = field("2")
    new_isr_with_epochs: list[BrokerState] = field("3+")
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32 = 0


@part
class TopicData:
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = []


@message("2-3", flexible=0)
class Request:
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    topics: list[TopicData] = []


@part
class PartitionDataReply:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    isr: list[Int32] = []
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32 = 0


@part
class TopicDataReply:
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionDataReply] = []


@message("2-3", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: list[TopicDataReply] = []
