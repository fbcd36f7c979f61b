"""CreateAcls (30): create ACLs; each succeeds or fails independently (KIP-140, KIP-290)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.acl_commands import CreateAcls
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.security.acls import Acl
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.serving.acl_codes import check_codes
from kpybroker.serving.authorization import require, require_authorizer
from kpybroker.serving.fair_loop import Turns, decided
from kpybroker.wire.rpc.create_acls import AclCreation, AclCreationResult, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

CREATED_MAX = 10_000
"""The maximum number of ACLs in one request, as in Kafka."""


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return an error code for each ACL.

    Raises MalformedFrame, SECURITY_DISABLED, CLUSTER_AUTHORIZATION_FAILED, POLICY_VIOLATION.
    """
    require_authorizer(broker, "No Authorizer is configured.")
    require(broker, call, Operation.ALTER, AclResource.CLUSTER)
    if len(request.creations) > CREATED_MAX:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"At most {CREATED_MAX} ACLs can be created in one request.")
    asked = []
    async for creation in Turns(broker.long_work).through(request.creations):
        asked.append(_acl(creation))
        check_codes(call, asked[-1:])
    results = await decided(broker, asked, CreateAcls, broker.config.request_timeout_ms)
    return Response(
        results=[
            AclCreationResult(error_code=result.error_code, error_message=result.error_message or "")
            for result in results
        ]
    )


def refuse(request: Request, refusal: KafkaError) -> Response:
    refused = AclCreationResult(error_code=refusal.code, error_message=refusal.message)
    return Response(results=[refused] * len(request.creations))


def _acl(asked: AclCreation) -> Acl:
    return Acl(
        asked.resource_type,
        asked.resource_name,
        asked.resource_pattern_type,
        asked.principal,
        asked.host,
        asked.operation,
        asked.permission_type,
    )
