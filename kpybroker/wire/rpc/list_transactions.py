"""ListTransactions (66): returns the transactional ids that a broker coordinates (KIP-664)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Int64


@message("0-2", flexible=0)
class Request:
    state_filters: list[str] = []
    producer_id_filters: list[Int64] = []
    duration_filter: Int64 = field("1+", default=-1)
    transactional_id_pattern: str | None = field("2+")


@part
class TransactionState:
    transactional_id: str = ""
    producer_id: Int64 = 0
    transaction_state: str = ""


@message("0-2", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[str] = []
    transaction_states: list[TransactionState] = []
