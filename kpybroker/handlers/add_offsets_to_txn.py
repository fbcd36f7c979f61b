"""AddOffsetsToTxn (25): add the partition that stores a group's offsets to a transaction.

v2 can return PRODUCER_FENCED; v3 is flexible. From `transaction.version` 2 on, clients do not need this request,
because TxnOffsetCommit v5 adds the partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.topics import OFFSETS_TOPIC
from kpybroker.transactions.commands import AddPartitions
from kpybroker.transactions.transaction import V1
from kpybroker.wire.rpc.add_offsets_to_txn import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

FENCED_SINCE = 2


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Respond once the group's partition of `__consumer_offsets` belongs to the transaction."""
    place = (OFFSETS_TOPIC, broker.coordinators.groups.partition_for(request.group_id))
    command = AddPartitions(request.transactional_id, request.producer_id, request.producer_epoch, [place], V1)
    try:
        await broker.coordinators.transactions.add(command, broker.config.request_timeout_ms)
    except KafkaError as refusal:
        code = refusal.code
        if code is ErrorCode.PRODUCER_FENCED and call.version < FENCED_SINCE:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return Response(error_code=code)
    return Response()
