"""The records of `__transaction_state`, and the marker that ends a transaction in a log (KIP-98, KIP-890)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32, Int64


@message("0", key=0)
class TransactionLogKey:
    transactional_id: str = ""


@part
class PartitionsSchema:
    topic: str = ""
    partition_ids: list[Int32] = []


@message("0-1", flexible=1)
class TransactionLogValue:
    producer_id: Int64 = 0
    previous_producer_id: Int64 = field("1+", default=-1, tag=0)
    next_producer_id: Int64 = field("1+", default=-1, tag=1)
    producer_epoch: Int16 = 0
    next_producer_epoch: Int16 = field("1+", default=-1, tag=3)
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: list[PartitionsSchema] | None = []
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
    client_transaction_version: Int16 = field("1+", tag=2)


@message("0")
class EndTxnMarker:
    coordinator_epoch: Int32 = 0
