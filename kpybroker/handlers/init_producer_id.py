"""InitProducerId (22): a producer id for an idempotent producer (KIP-98).

v2 flexible; v3 and above carry the producer's present id and epoch (KIP-360), which matter to transactions only.
Transactions are not served: a transactional id gets a fatal refusal, so that no client waits for what will not come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.rpc.init_producer_id import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """A fresh id, with epoch 0."""
    if request.transactional_id is not None:
        code = ErrorCode.INVALID_REQUEST if request.transactional_id == "" else _NO_TRANSACTIONS
        return Response(error_code=code, producer_id=-1, producer_epoch=-1)
    try:
        producer_id = await broker.next_producer_id()
    except KafkaError as refusal:
        return Response(error_code=refusal.code, producer_id=-1, producer_epoch=-1)
    return Response(producer_id=producer_id, producer_epoch=0)


_NO_TRANSACTIONS = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
"""Every client treats this code as fatal; COORDINATOR_NOT_AVAILABLE would be retried until its timeout."""
