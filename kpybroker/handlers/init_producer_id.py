"""InitProducerId (22): return a producer id and epoch to an idempotent or transactional producer (KIP-98).

v2 is flexible; v3 contains the producer's current id and epoch (KIP-360); v4 can return PRODUCER_FENCED; v5 has the
same fields as v4 (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.transactions.commands import InitProducerId
from kpybroker.wire.rpc.init_producer_id import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

FENCED_SINCE = 4


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return a new id with epoch 0; for a transactional id, return its producer id with the next epoch."""
    try:
        if request.transactional_id is None:
            return Response(producer_id=await broker.coordinators.producer_ids.next(), producer_epoch=0)
        command = InitProducerId(
            request.transactional_id,
            request.transaction_timeout_ms,
            _expected(request.producer_id, request.producer_epoch),
        )
        producer_id, epoch = await broker.coordinators.transactions.begin(command, broker.config.request_timeout_ms)
    except KafkaError as refusal:
        code = refusal.code
        if code is ErrorCode.PRODUCER_FENCED and call.version < FENCED_SINCE:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return Response(error_code=code, producer_id=-1, producer_epoch=-1)
    return Response(producer_id=producer_id, producer_epoch=epoch)


def _expected(producer_id: int, producer_epoch: int) -> tuple[int, int] | None:
    if producer_id == -1 and producer_epoch == -1:
        return None
    if producer_id == -1 or producer_epoch == -1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "producer_id and producer_epoch must both be given, or neither")
    return producer_id, producer_epoch
