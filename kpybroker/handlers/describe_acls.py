"""DescribeAcls (29): list the ACLs that match a filter, grouped by resource (KIP-140, KIP-290)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.security.acls import AclFilter
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.serving.acl_codes import check_codes
from kpybroker.serving.authorization import require, require_authorizer
from kpybroker.serving.fair_loop import Turns
from kpybroker.wire.rpc.describe_acls import AclDescription, DescribeAclsResource, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

DESCRIBED_MAX = 100_000
"""The maximum number of ACLs in a response. A cluster has more ACLs only if Apache Kafka stored them."""


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return the matching ACLs.

    Raises MalformedFrame, SECURITY_DISABLED, CLUSTER_AUTHORIZATION_FAILED, POLICY_VIOLATION.
    """
    require_authorizer(broker, "No Authorizer is configured on the broker")
    require(broker, call, Operation.DESCRIBE, AclResource.CLUSTER)
    wanted = AclFilter(
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    check_codes(call, (wanted,))
    count = 0
    found: dict[tuple[int, str, int], DescribeAclsResource] = {}
    async for acl in Turns(broker.long_work).through(broker.metadata.image.acls.values()):
        if not wanted.matches(acl):
            continue
        count += 1
        if count > DESCRIBED_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"The filter selects more than {DESCRIBED_MAX} ACLs; name a resource or a principal.",
            )
        pattern = acl.resource_type, acl.resource_name, acl.pattern_type
        if pattern not in found:
            kind, name, pattern_type = pattern
            found[pattern] = DescribeAclsResource(
                resource_type=kind, resource_name=name, pattern_type=pattern_type, acls=[]
            )
        found[pattern].acls.append(
            AclDescription(
                principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
            )
        )
    return Response(resources=list(found.values()))
