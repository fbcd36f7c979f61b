"""Helpers for tests of ACLs: a broker with Kafka's StandardAuthorizer, and requests."""

from __future__ import annotations

from typing import Any

from kpybroker.call import Call
from kpybroker.client.peer import Peer
from kpybroker.config.security_keys import STANDARD_AUTHORIZER
from kpybroker.handlers import answer
from kpybroker.security.acls import ANY
from kpybroker.security.principal import Principal
from kpybroker.server.node import Node
from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import create_acls, delete_acls, describe_acls

SETTINGS = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
TOPIC, CLUSTER = 2, 4
LITERAL, PREFIXED = 3, 4
ALL, READ, WRITE, CREATE, ALTER, DESCRIBE = 2, 3, 4, 5, 7, 8
DENY, ALLOW = 2, 3
BOB = Principal("User", "bob")


def creation(
    name: str = "t",
    operation: int = READ,
    permission: int = ALLOW,
    *,
    resource: int = TOPIC,
    pattern: int = LITERAL,
    principal: str = "User:bob",
    host: str = "*",
) -> create_acls.AclCreation:
    """An ACL for CreateAcls. By default, bob may read the topic t."""
    return create_acls.AclCreation(
        resource_type=resource,
        resource_name=name,
        resource_pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )


def selection(**fields: Any) -> delete_acls.DeleteAclsFilter:
    """A filter for DeleteAcls. All fields that are not given match everything."""
    return delete_acls.DeleteAclsFilter(**_open(fields))


def description(**fields: Any) -> describe_acls.Request:
    """A DescribeAcls request. All fields that are not given match everything."""
    return describe_acls.Request(**_open(fields))


def _open(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
        **fields,
    }


async def create(peer: Peer, *creations: create_acls.AclCreation) -> list[tuple[int, str]]:
    told = await peer.ask("CreateAcls", create_acls.Request(creations=list(creations)), version=3)
    return [(each.error_code, each.error_message) for each in told.results]


async def asked_by(node: Node, principal: Principal, api: str, request: Any, version: int | None = None) -> Any:
    """The response to a request of a principal."""
    row = by_name[api]
    call = Call(row.key, row.max if version is None else version, "c", "127.0.0.1", 1, principal=principal)
    return await answer(node.broker, row, call, request)
