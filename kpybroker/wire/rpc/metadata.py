"""Metadata (3): returns the brokers, and the leader of each partition."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Uuid


@part
class MetadataRequestTopic:
    topic_id: Uuid = field("10+")
    name: str | None = field(default="", nullable="10+")


@message("0-13", flexible=9)
class Request:
    topics: list[MetadataRequestTopic] | None = field(default=[], nullable="1+")
    allow_auto_topic_creation: bool = field("4+", default=True)
    include_cluster_authorized_operations: bool = field("8-10")
    include_topic_authorized_operations: bool = field("8+")


@part
class MetadataResponseBroker:
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = field("1+")


@part
class MetadataResponsePartition:
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = field("7+", default=-1)
    replica_nodes: list[Int32] = []
    isr_nodes: list[Int32] = []
    offline_replicas: list[Int32] = field("5+")


@part
class MetadataResponseTopic:
    error_code: Int16 = 0
    name: str | None = field(default="", nullable="12+")
    topic_id: Uuid = field("10+")
    is_internal: bool = field("1+")
    partitions: list[MetadataResponsePartition] = []
    topic_authorized_operations: Int32 = field("8+", default=-(2**31))


@message("0-13", flexible=9)
class Response:
    throttle_time_ms: Int32 = field("3+")
    brokers: list[MetadataResponseBroker] = []
    cluster_id: str | None = field("2+")
    controller_id: Int32 = field("1+", default=-1)
    topics: list[MetadataResponseTopic] = []
    cluster_authorized_operations: Int32 = field("8-10", default=-(2**31))
    error_code: Int16 = field("13+")
