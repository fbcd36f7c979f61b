"""CreateTopics (19): creates topics, with replicas that the controller places or the client assigns."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32, Uuid


@part
class CreatableReplicaAssignment:
    partition_index: Int32 = 0
    broker_ids: list[Int32] = []


@part
class CreatableTopicConfig:
    name: str = ""
    value: str | None = ""


@part
class CreatableTopic:
    name: str = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = []
    configs: list[CreatableTopicConfig] = []


@message("2-7", flexible=5)
class Request:
    topics: list[CreatableTopic] = []
    timeout_ms: Int32 = 60000
    validate_only: bool = False


@part
class CreatableTopicConfigs:
    name: str = field("5+")
    value: str | None = field("5+", default="")
    read_only: bool = field("5+")
    config_source: Int8 = field("5+", default=-1)
    is_sensitive: bool = field("5+")


@part
class CreatableTopicResult:
    name: str = ""
    topic_id: Uuid = field("7+")
    error_code: Int16 = 0
    error_message: str | None = ""
    topic_config_error_code: Int16 = field("5+", tag=0)
    num_partitions: Int32 = field("5+", default=-1)
    replication_factor: Int16 = field("5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = field("5+", default=[])


@message("2-7", flexible=5)
class Response:
    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult] = []
