"""DescribeTransactions (65): returns the transactions of transactional ids from their coordinator (KIP-664)."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Int64


@message("0", flexible=0)
class Request:
    transactional_ids: list[str] = []


@part
class TopicData:
    topic: str = ""
    partitions: list[Int32] = []


@part
class TransactionState:
    error_code: Int16 = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = []


@message("0", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState] = []
