"""DeleteAcls (31): delete the ACLs that match filters, either all of them or none (KIP-140, KIP-290)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.acl_commands import AclResult, DeleteAcls
from kpybroker.errors import KafkaError
from kpybroker.security.acls import AclFilter
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.serving.acl_codes import check_codes
from kpybroker.serving.authorization import require, require_authorizer
from kpybroker.wire.rpc.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return the deleted ACLs for each filter.

    Raises MalformedFrame, SECURITY_DISABLED, CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST.
    """
    require_authorizer(broker, "No Authorizer is configured.")
    require(broker, call, Operation.ALTER, AclResource.CLUSTER)
    filters = tuple(map(_filter, request.filters))
    check_codes(call, filters)
    results = await broker.controller.ask(DeleteAcls(filters), broker.config.request_timeout_ms)
    return Response(filter_results=list(map(_result, results)))


def refuse(request: Request, refusal: KafkaError) -> Response:
    refused = DeleteAclsFilterResult(error_code=refusal.code, error_message=refusal.message)
    return Response(filter_results=[refused] * len(request.filters))


def _filter(asked: DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )


def _result(result: AclResult) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(
        error_code=result.error_code,
        error_message=result.error_message or "",
        matching_acls=[
            DeleteAclsMatchingAcl(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in result.deleted
        ],
    )
