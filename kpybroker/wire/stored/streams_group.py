"""The records of `__consumer_offsets` about streams groups (KIP-1071)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32, Int64, Uint16


@message("0", key=17)
class StreamsGroupMetadataKey:
    group_id: str = ""


@part
class LastAssignmentConfig:
    key: str = ""
    value: str = ""


@message("0", flexible=0)
class StreamsGroupMetadataValue:
    epoch: Int32 = 0
    metadata_hash: Int64 = 0
    validated_topology_epoch: Int32 = field(default=-1, tag=0)
    last_assignment_configs: list[LastAssignmentConfig] | None = field(default=[], tag=1)


@message("0", key=19)
class StreamsGroupMemberMetadataKey:
    group_id: str = ""
    member_id: str = ""


@part
class Endpoint:
    host: str = ""
    port: Uint16 = 0


@part
class KeyValue:
    key: str = ""
    value: str = ""


@message("0", flexible=0)
class StreamsGroupMemberMetadataValue:
    instance_id: str | None = ""
    rack_id: str | None = ""
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: Int32 = -1
    topology_epoch: Int32 = 0
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = []


@message("0", key=20)
class StreamsGroupTargetAssignmentMetadataKey:
    group_id: str = ""


@message("0", flexible=0)
class StreamsGroupTargetAssignmentMetadataValue:
    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field(tag=0)


@message("0", key=21)
class StreamsGroupTargetAssignmentMemberKey:
    group_id: str = ""
    member_id: str = ""


@part
class TaskIds:
    subtopology_id: str = ""
    partitions: list[Int32] = []


@message("0", flexible=0)
class StreamsGroupTargetAssignmentMemberValue:
    active_tasks: list[TaskIds] = []
    standby_tasks: list[TaskIds] = []
    warmup_tasks: list[TaskIds] = []


@message("0", key=22)
class StreamsGroupCurrentMemberAssignmentKey:
    group_id: str = ""
    member_id: str = ""


@part
class CurrentTaskIds:
    """Tasks of a current assignment. Kafka calls this structure and that of a target assignment TaskIds."""

    subtopology_id: str = ""
    partitions: list[Int32] = []
    assignment_epochs: list[Int32] | None = field(default=[], tag=0)


@message("0", flexible=0)
class StreamsGroupCurrentMemberAssignmentValue:
    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    active_tasks: list[CurrentTaskIds] = []
    standby_tasks: list[CurrentTaskIds] = []
    warmup_tasks: list[CurrentTaskIds] = []
    active_tasks_pending_revocation: list[CurrentTaskIds] = []
    standby_tasks_pending_revocation: list[CurrentTaskIds] = []
    warmup_tasks_pending_revocation: list[CurrentTaskIds] = []


@message("0", key=23)
class StreamsGroupTopologyKey:
    group_id: str = ""


@part
class TopicConfig:
    key: str = ""
    value: str = ""


@part
class TopicInfo:
    name: str = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: list[TopicConfig] = []


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


@message("0", flexible=0)
class StreamsGroupTopologyValue:
    epoch: Int32 = 0
    subtopologies: list[Subtopology] = []
