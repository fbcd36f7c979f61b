"""StreamsGroupHeartbeat (88): join, stay in and leave a streams group, and get its tasks (KIP-1071)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32, Int64, Uint16


@part
class KeyValue:
    key: str = ""
    value: str = ""


@part
class TopicInfo:
    name: str = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: list[KeyValue] = []


@part
class CopartitionGroup:
    source_topics: list[Int16] = []
    source_topic_regex: list[Int16] = []
    repartition_source_topics: list[Int16] = []


@part
class Subtopology:
    subtopology_id: str = ""
    source_topics: list[str] = []
    source_topic_regex: list[str] = []
    state_changelog_topics: list[TopicInfo] = []
    repartition_sink_topics: list[str] = []
    repartition_source_topics: list[TopicInfo] = []
    copartition_groups: list[CopartitionGroup] = []


@part
class Topology:
    epoch: Int32 = 0
    subtopologies: list[Subtopology] = []


@part
class TaskIds:
    subtopology_id: str = ""
    partitions: list[Int32] = []


@part
class Endpoint:
    host: str = ""
    port: Uint16 = 0


@part
class TaskOffset:
    subtopology_id: str = ""
    partition: Int32 = 0
    offset: Int64 = 0


@message("0", flexible=0)
class Request:
    group_id: str = ""
    member_id: str = ""
    member_epoch: Int32 = 0
    endpoint_information_epoch: Int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: Int32 = -1
    topology: Topology | None = None
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    process_id: str | None = None
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] | None = None
    task_offsets: list[TaskOffset] | None = None
    task_end_offsets: list[TaskOffset] | None = None
    shutdown_application: bool = False


@part
class Status:
    status_code: Int8 = 0
    status_detail: str = ""


@part
class TopicPartition:
    topic: str = ""
    partitions: list[Int32] = []


@part
class EndpointToPartitions:
    user_endpoint: Endpoint = field()
    active_partitions: list[TopicPartition] = []
    standby_partitions: list[TopicPartition] = []


@message("0", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str = ""
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    acceptable_recovery_lag: Int32 = 0
    task_offset_interval_ms: Int32 = 0
    status: list[Status] | None = []
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    endpoint_information_epoch: Int32 = 0
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = None
