"""Functions with which handlers call the authorizer. Without `authorizer.class.name`, everything is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.security.authorizer import CLUSTER_NAME, AclResource, Operation

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

DENIED: Mapping[AclResource, ErrorCode] = MappingProxyType(
    {
        AclResource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        AclResource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
        AclResource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        AclResource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        AclResource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        AclResource.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)
"""The error code for an operation that is not allowed, by resource type."""


GRANTED_MAX = 100
"""The maximum number of topics whose grants are cached for one API of one connection. A full cache is cleared."""
ASK_THEMSELVES = frozenset(
    {
        "CreateAcls",
        "CreateDelegationToken",
        "DeleteAcls",
        "DescribeAcls",
        "DescribeDelegationToken",
        "DescribeTopicPartitions",
        "Fetch",
        "Metadata",
        "Produce",
    }
)
"""APIs whose handlers call the authorizer. The rules for all other APIs are in `serving/authorization_rules.py`."""
ASK_NOBODY = frozenset(
    {
        "ApiVersions",
        "ExpireDelegationToken",
        "RenewDelegationToken",
        "SaslAuthenticate",
        "SaslHandshake",
    }
)
"""APIs that every client may use. The controller checks who may renew or expire a delegation token, without ACLs."""


def allows(broker: Broker, call: Call, operation: Operation, resource: AclResource, name: str = CLUSTER_NAME) -> bool:
    """Whether the caller may do the operation on the resource."""
    authorizer = broker.metadata.authorizer
    return authorizer is None or authorizer.allows(call.principal, call.host, call.api_key, operation, resource, name)


def allows_topic(broker: Broker, call: Call, operation: Operation, topic: str) -> bool:
    """Like `allows`, but grants are cached until the ACLs change. For APIs that are called frequently with the same
    operation: Produce and Fetch."""
    authorizer = broker.metadata.authorizer
    if authorizer is None:
        return True
    grants = authorizer.grants
    if grants is not None and call.granted.get(topic) is grants:
        return True
    if not authorizer.allows(call.principal, call.host, call.api_key, operation, AclResource.TOPIC, topic):
        return False
    if grants is not None:
        if len(call.granted) >= GRANTED_MAX:
            call.granted.clear()
        call.granted[topic] = grants
    return True


def is_shown(broker: Broker, call: Call, operation: Operation, resource: AclResource, name: str = CLUSTER_NAME) -> bool:
    """Like `allows`, for resources that a response omits if the caller may not see them. An omission is not a refusal,
    so it is neither logged nor counted."""
    authorizer = broker.metadata.authorizer
    return authorizer is None or bool(authorizer.operations(call.principal, call.host, (operation,), resource, name))


def may_act_as_a_node(broker: Broker, call: Call) -> bool:
    """Whether the caller has the permissions of brokers and controllers. There is no other proof that a node has sent a
    request."""
    return is_shown(broker, call, Operation.CLUSTER_ACTION, AclResource.CLUSTER)


def allows_any(broker: Broker, call: Call, operation: Operation, resource: AclResource) -> bool:
    """Whether the caller may do the operation on at least one resource of the type."""
    authorizer = broker.metadata.authorizer
    return authorizer is None or authorizer.allows_any(call.principal, call.host, call.api_key, operation, resource)


def require(broker: Broker, call: Call, operation: Operation, resource: AclResource, name: str = CLUSTER_NAME) -> None:
    """Raise the authorization error of the resource unless the caller may do the operation."""
    if not allows(broker, call, operation, resource, name):
        raise KafkaError(DENIED[resource])


def require_authorizer(broker: Broker, message: str) -> None:
    """Raise SECURITY_DISABLED with this message if there is no authorizer."""
    if broker.metadata.authorizer is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, message)
