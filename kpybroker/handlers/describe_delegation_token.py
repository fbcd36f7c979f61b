"""DescribeDelegationToken (41): list the tokens of some or all principals, with their HMACs (KIP-48, KIP-373).

A response contains the tokens that the caller owns, has requested or may renew. It contains other tokens only if the
caller has the permission DESCRIBE on the token, or DESCRIBE_TOKENS on its owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.security.delegation_tokens import DelegationToken, parts_of, token_hmac
from kpybroker.serving.authorization import is_shown
from kpybroker.serving.delegation_tokens import may_ask
from kpybroker.serving.fair_loop import Turns
from kpybroker.wire.rpc.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return the tokens. Raises DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, DELEGATION_TOKEN_AUTH_DISABLED."""
    if not may_ask(broker, call):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    key = broker.config.delegation_tokens.secret_key
    if key is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    owners = request.owners
    if owners is not None and not owners:
        return Response()
    asked = None if owners is None else {f"{each.principal_type}:{each.principal_name}" for each in owners}
    return Response(
        tokens=[
            _described(token, key)
            async for token in Turns(broker.long_work).through(broker.metadata.image.delegation_tokens.values())
            if (asked is None or token.is_of_any(asked)) and _may_see(broker, call, token)
        ]
    )


def _may_see(broker: Broker, call: Call, token: DelegationToken) -> bool:
    return (
        token.is_of_any((str(call.principal),))
        or is_shown(broker, call, Operation.DESCRIBE, AclResource.DELEGATION_TOKEN, token.token_id)
        or is_shown(broker, call, Operation.DESCRIBE_TOKENS, AclResource.USER, token.owner)
    )


def _described(token: DelegationToken, key: str) -> DescribedDelegationToken:
    owner, requester = parts_of(token.owner), parts_of(token.requester)
    renewers = map(parts_of, token.renewers)
    return DescribedDelegationToken(
        principal_type=owner[0],
        principal_name=owner[1],
        token_requester_principal_type=requester[0],
        token_requester_principal_name=requester[1],
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=token_hmac(key, token.token_id),
        renewers=[DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name) for kind, name in renewers],
    )
