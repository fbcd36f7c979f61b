"""CreateDelegationToken (38): create a token with which clients log in as its owner (KIP-48).

The owner is the caller or another user (KIP-373).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.token_commands import CreateDelegationToken
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.security.delegation_tokens import DelegationToken, parts_of, token_hmac
from kpybroker.security.principal import ANONYMOUS, USER, Principal
from kpybroker.serving.authorization import allows
from kpybroker.serving.delegation_tokens import may_ask
from kpybroker.wire.rpc.create_delegation_token import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def before(broker: Broker, call: Call, request: Request) -> Response | None:
    """Refuse callers that may not send token requests, before the request is forwarded."""
    if may_ask(broker, call):
        return None
    return _refused(call.principal, request, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    early = before(broker, call, request)
    if early is not None:
        return early
    requester, owner = call.principal, _owner(call.principal, request)
    if owner != requester and not allows(broker, call, Operation.CREATE_TOKENS, AclResource.USER, str(owner)):
        return _refused(requester, request, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    if any(each.principal_type != USER for each in request.renewers):
        return _refused(requester, request, ErrorCode.INVALID_PRINCIPAL_TYPE)
    command = CreateDelegationToken(
        str(requester),
        str(owner),
        tuple(f"{each.principal_type}:{each.principal_name}" for each in request.renewers),
        request.max_lifetime_ms,
    )
    try:
        token = await broker.controller.ask(command, broker.config.request_timeout_ms)
    except KafkaError as refusal:
        if refusal.code is ErrorCode.NOT_CONTROLLER:
            raise
        return _refused(requester, request, refusal.code, at_ms=0)
    return _created(broker, token)


def refuse(request: Request, refusal: KafkaError) -> Response:
    return _refused(ANONYMOUS, request, refusal.code)


def _created(broker: Broker, token: DelegationToken) -> Response:
    key = broker.config.delegation_tokens.secret_key
    assert key is not None, "the controller has refused the request"
    response = _about(parts_of(token.owner), parts_of(token.requester))
    response.issue_timestamp_ms = token.issued_ms
    response.expiry_timestamp_ms = token.expires_ms
    response.max_timestamp_ms = token.max_ms
    response.token_id, response.hmac = token.token_id, token_hmac(key, token.token_id)
    return response


def _refused(requester: Principal, request: Request, code: ErrorCode, at_ms: int = -1) -> Response:
    owner = _owner(requester, request)
    response = _about((owner.type, owner.name), (requester.type, requester.name))
    response.error_code = code
    response.issue_timestamp_ms = response.expiry_timestamp_ms = response.max_timestamp_ms = at_ms
    return response


def _owner(requester: Principal, request: Request) -> Principal:
    """The owner that the request names; if it names none, the caller."""
    if not request.owner_principal_name:
        return requester
    return Principal(request.owner_principal_type or "", request.owner_principal_name)


def _about(owner: tuple[str, str], requester: tuple[str, str]) -> Response:
    return Response(
        principal_type=owner[0],
        principal_name=owner[1],
        token_requester_principal_type=requester[0],
        token_requester_principal_name=requester[1],
    )
