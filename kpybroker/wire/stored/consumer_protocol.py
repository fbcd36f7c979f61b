"""The subscriptions and assignments of members that use the classic protocol. Members exchange them with their leader,
and the coordinator reads them when a group migrates."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int32


@part
class TopicPartition:
    topic: str = ""
    partitions: list[Int32] = []


@message("0-3")
class ConsumerProtocolSubscription:
    topics: list[str] = []
    user_data: bytes | None = None
    owned_partitions: list[TopicPartition] = field("1+")
    generation_id: Int32 = field("2+", default=-1)
    rack_id: str | None = field("3+", default=None)


@message("0-3")
class ConsumerProtocolAssignment:
    assigned_partitions: list[TopicPartition] = []
    user_data: bytes | None = None
