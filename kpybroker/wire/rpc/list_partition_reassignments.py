"""ListPartitionReassignments (46): returns the partition reassignments in progress (KIP-455)."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import Int16, Int32


@part
class ListPartitionReassignmentsTopics:
    name: str = ""
    partition_indexes: list[Int32] = []


@message("0", flexible=0)
class Request:
    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


@part
class OngoingPartitionReassignment:
    partition_index: Int32 = 0
    replicas: list[Int32] = []
    adding_replicas: list[Int32] = []
    removing_replicas: list[Int32] = []


@part
class OngoingTopicReassignment:
    name: str = ""
    partitions: list[OngoingPartitionReassignment] = []


@message("0", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    topics: list[OngoingTopicReassignment] = []
