"""RenewDelegationToken (39): extend the lifetime of a token (KIP-48).

Only the owner of a token and its renewers may do so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.token_commands import RenewDelegationToken
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.serving.delegation_tokens import may_ask
from kpybroker.wire.rpc.renew_delegation_token import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def before(broker: Broker, call: Call, request: Request) -> Response | None:
    """Refuse callers that may not send token requests, before the request is forwarded."""
    if may_ask(broker, call):
        return None
    return refuse(request, KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED))


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    early = before(broker, call, request)
    if early is not None:
        return early
    command = RenewDelegationToken(str(call.principal), bytes(request.hmac), request.renew_period_ms)
    try:
        expires_ms = await broker.controller.ask(command, broker.config.request_timeout_ms)
    except KafkaError as refusal:
        if refusal.code is ErrorCode.NOT_CONTROLLER:
            raise
        return Response(error_code=refusal.code)
    return Response(expiry_timestamp_ms=expires_ms)


def refuse(_request: Request, refusal: KafkaError) -> Response:
    return Response(error_code=refusal.code, expiry_timestamp_ms=-1)
