"""CreateDelegationToken (38): refused as on any PLAINTEXT listener, whose clients are not authenticated (KIP-48)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.rpc.create_delegation_token import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

USER, ANONYMOUS = "User", "ANONYMOUS"


def handle(_broker: Broker, _call: Call, _request: Request) -> Response:
    raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def refuse(request: Request, refusal: KafkaError) -> Response:
    kind, name = request.owner_principal_type, request.owner_principal_name
    if not kind or not name:
        kind, name = USER, ANONYMOUS
    return Response(
        error_code=refusal.code,
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=USER,
        token_requester_principal_name=ANONYMOUS,
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
    )
