"""ShareFetch (78): acquires records of share partitions, and acknowledges earlier records, in a session (KIP-932)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int8, Int16, Int32, Int64, RecordChunks, Uuid


@part
class AcknowledgementBatch:
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    acknowledge_types: list[Int8] = []


@part
class FetchPartition:
    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = []


@part
class FetchTopic:
    topic_id: Uuid = ZERO_UUID
    partitions: list[FetchPartition] = []


@part
class ForgottenTopic:
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


@message("1-2", flexible=0)
class Request:
    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: Int32 = 0
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 2**31 - 1
    max_records: Int32 = 0
    batch_size: Int32 = 0
    share_acquire_mode: Int8 = field("2+")
    is_renew_ack: bool = field("2+")
    topics: list[FetchTopic] = []
    forgotten_topics_data: list[ForgottenTopic] = []


@part
class LeaderIdAndEpoch:
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@part
class AcquiredRecords:
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_count: Int16 = 0


@part
class PartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: str | None = None
    current_leader: LeaderIdAndEpoch = field()
    records: RecordChunks = field(default=None, nullable="none")
    acquired_records: list[AcquiredRecords] = []


@part
class ShareFetchableTopicResponse:
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = []


@part
class NodeEndpoint:
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None


@message("1-2", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: Int32 = 0
    responses: list[ShareFetchableTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []
