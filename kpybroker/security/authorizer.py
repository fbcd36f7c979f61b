"""The interface of an authorizer: operations, resource types, and the check of an operation (KIP-11, KIP-290).

Source: the codes of Apache Kafka's AclOperation and ResourceType.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Protocol

from kpybroker.security.principal import Principal

CLUSTER_NAME = "kafka-cluster"
"""The only resource of type CLUSTER."""


class Operation(IntEnum):
    """The operations, with Kafka's codes. In an authorized-operations bit field, the code is the number of the bit."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclResource(IntEnum):
    """The types of resources that have ACLs, with Kafka's codes."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Authorizer(Protocol):
    """Decides by the ACLs of the metadata that this node has applied."""

    grants: object | None
    """Grants may be cached while this is the same object. It is replaced when grants may have become invalid. If None,
    nothing may be cached."""

    def allows(
        self, principal: Principal, host: str, api_key: int, operation: Operation, resource: AclResource, name: str
    ) -> bool:
        """Whether this principal, from this IP address, may perform the operation on the resource."""

    def allows_any(
        self, principal: Principal, host: str, api_key: int, operation: Operation, resource: AclResource
    ) -> bool:
        """Whether this principal, from this IP address, may perform the operation on at least one resource of the
        type."""

    def operations(
        self, principal: Principal, host: str, asked: Iterable[Operation], resource: AclResource, name: str
    ) -> int:
        """The bits of those `asked` operations that the principal may perform on the resource. Refusals are not
        logged."""
