"""CreatePartitions (37): adds partitions to topics."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import Int16, Int32


@part
class CreatePartitionsAssignment:
    broker_ids: list[Int32] = []


@part
class CreatePartitionsTopic:
    name: str = ""
    count: Int32 = 0
    assignments: list[CreatePartitionsAssignment] | None = []


@message("0-3", flexible=2)
class Request:
    topics: list[CreatePartitionsTopic] = []
    timeout_ms: Int32 = 0
    validate_only: bool = False


@part
class CreatePartitionsTopicResult:
    name: str = ""
    error_code: Int16 = 0
    error_message: str | None = None


@message("0-3", flexible=2)
class Response:
    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = []
