"""EndTxn (26): commit or abort a transaction.

v2 can return PRODUCER_FENCED; v3 is flexible; v5 returns the producer's next epoch (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.transactions.commands import End
from kpybroker.transactions.transaction import V1, V2
from kpybroker.wire.rpc.end_txn import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

FENCED_SINCE = 2
BUMPS_SINCE = 5


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Respond once the outcome is committed. The markers are written later."""
    command = End(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        V2 if call.version >= BUMPS_SINCE else V1,
    )
    try:
        producer_id, epoch = await broker.coordinators.transactions.end(command, broker.config.request_timeout_ms)
    except KafkaError as refusal:
        code = refusal.code
        if code is ErrorCode.PRODUCER_FENCED and call.version < FENCED_SINCE:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return Response(error_code=code)
    return Response(producer_id=producer_id, producer_epoch=epoch)
