"""ShareGroupHeartbeat (76): a member joins, stays in or leaves a share group (KIP-932)."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int16, Int32, Uuid


@message("1", flexible=0)
class Request:
    group_id: str = ""
    member_id: str = ""
    member_epoch: Int32 = 0
    rack_id: str | None = None
    subscribed_topic_names: list[str] | None = None


@part
class TopicPartitions:
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


@part
class Assignment:
    topic_partitions: list[TopicPartitions] = []


@message("1", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None
