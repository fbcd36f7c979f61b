"""ConsumerGroupHeartbeat (68): a member joins, stays in or leaves a consumer group, and receives its assignment
(KIP-848)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int16, Int32, Uuid


@part
class TopicPartitions:
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


@message("0-1", flexible=0)
class Request:
    group_id: str = ""
    member_id: str = ""
    member_epoch: Int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: str | None = field("1+", default=None)
    server_assignor: str | None = None
    topic_partitions: list[TopicPartitions] | None = None


@part
class Assignment:
    topic_partitions: list[TopicPartitions] = []


@message("0-1", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None
