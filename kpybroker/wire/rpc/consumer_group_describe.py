"""ConsumerGroupDescribe (69): returns the epochs, members and assignments of consumer groups (KIP-848)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int8, Int16, Int32, Uuid


@message("0-1", flexible=0)
class Request:
    group_ids: list[str] = []
    include_authorized_operations: bool = False


@part
class TopicPartitions:
    topic_id: Uuid = ZERO_UUID
    topic_name: str = ""
    partitions: list[Int32] = []


@part
class Assignment:
    topic_partitions: list[TopicPartitions] = []


@part
class Member:
    member_id: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: Int32 = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []
    subscribed_topic_regex: str | None = None
    assignment: Assignment = field()
    target_assignment: Assignment = field()
    member_type: Int8 = field("1+", default=-1)


@part
class DescribedGroup:
    error_code: Int16 = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: str = ""
    members: list[Member] = []
    authorized_operations: Int32 = -(2**31)


@message("0-1", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = []
