"""ExpireDelegationToken (40): refused as on any PLAINTEXT listener, whose clients are not authenticated (KIP-48)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.rpc.expire_delegation_token import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def handle(_broker: Broker, _call: Call, _request: Request) -> Response:
    raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def refuse(_request: Request, refusal: KafkaError) -> Response:
    return Response(error_code=refusal.code, expiry_timestamp_ms=-1)
