"""AlterReplicaLogDirs (34): moves replicas to other log directories of the same broker (KIP-113)."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import Int16, Int32


@part
class AlterReplicaLogDirTopic:
    name: str = ""
    partitions: list[Int32] = []


@part
class AlterReplicaLogDir:
    path: str = ""
    topics: list[AlterReplicaLogDirTopic] = []


@message("1-2", flexible=2)
class Request:
    dirs: list[AlterReplicaLogDir] = []


@part
class AlterReplicaLogDirPartitionResult:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@part
class AlterReplicaLogDirTopicResult:
    topic_name: str = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = []


@message("1-2", flexible=2)
class Response:
    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = []
