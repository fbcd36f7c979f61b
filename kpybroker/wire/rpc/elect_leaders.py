"""ElectLeaders (43): elects the preferred replica as the leader, or any replica in an unclean election (KIP-460)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32


@part
class TopicPartitions:
    topic: str = ""
    partitions: list[Int32] = []


@message("0-2", flexible=2)
class Request:
    election_type: Int8 = field("1+")
    topic_partitions: list[TopicPartitions] | None = []
    timeout_ms: Int32 = 60000


@part
class PartitionResult:
    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


@part
class ReplicaElectionResult:
    topic: str = ""
    partition_result: list[PartitionResult] = []


@message("0-2", flexible=2)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = field("1+")
    replica_election_results: list[ReplicaElectionResult] = []
