"""StreamsGroupDescribe (89): topology, epochs, members and tasks of streams groups (KIP-1071)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Int64, Uint16


@message("0", flexible=0)
class Request:
    group_ids: list[str] = []
    include_authorized_operations: bool = False


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
class Subtopology:
    subtopology_id: str = ""
    source_topics: list[str] = []
    repartition_sink_topics: list[str] = []
    state_changelog_topics: list[TopicInfo] = []
    repartition_source_topics: list[TopicInfo] = []


@part
class Topology:
    epoch: Int32 = 0
    subtopologies: list[Subtopology] | None = None


@part
class Endpoint:
    host: str = ""
    port: Uint16 = 0


@part
class TaskOffset:
    subtopology_id: str = ""
    partition: Int32 = 0
    offset: Int64 = 0


@part
class TaskIds:
    subtopology_id: str = ""
    partitions: list[Int32] = []


@part
class Assignment:
    active_tasks: list[TaskIds] = []
    standby_tasks: list[TaskIds] = []
    warmup_tasks: list[TaskIds] = []


@part
class Member:
    member_id: str = ""
    member_epoch: Int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topology_epoch: Int32 = 0
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = []
    task_offsets: list[TaskOffset] = []
    task_end_offsets: list[TaskOffset] = []
    assignment: Assignment = field()
    target_assignment: Assignment = field()
    is_classic: bool = False


@part
class DescribedGroup:
    error_code: Int16 = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    topology: Topology | None = None
    members: list[Member] = []
    authorized_operations: Int32 = -(2**31)


@message("0", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = []
