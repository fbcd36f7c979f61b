"""DescribeLogDirs (35): returns the sizes of partitions, and the free space of log directories."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Int64


@part
class DescribableLogDirTopic:
    topic: str = ""
    partitions: list[Int32] = []


@message("1-5", flexible=2)
class Request:
    topics: list[DescribableLogDirTopic] | None = []


@part
class DescribeLogDirsPartition:
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: bool = False


@part
class DescribeLogDirsTopic:
    name: str = ""
    partitions: list[DescribeLogDirsPartition] = []


@part
class DescribeLogDirsResult:
    error_code: Int16 = 0
    log_dir: str = ""
    topics: list[DescribeLogDirsTopic] = []
    total_bytes: Int64 = field("4+", default=-1)
    usable_bytes: Int64 = field("4+", default=-1)
    is_cordoned: bool = field("5+")


@message("1-5", flexible=2)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = field("3+")
    results: list[DescribeLogDirsResult] = []
