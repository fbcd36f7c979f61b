"""The authorized operations of a client in the form that responses contain: a bit for each AclOperation code of Kafka.

Without an authorizer, all operations of a resource type are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.security.authorizer import CLUSTER_NAME, AclResource, Operation
from kpybroker.serving.authorization import is_shown

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

NOT_ASKED = -(2**31)
"""The value if the operations were not requested."""
SUPPORTED: Mapping[AclResource, tuple[Operation, ...]] = MappingProxyType(
    {
        AclResource.TOPIC: (
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        ),
        AclResource.GROUP: (
            Operation.READ,
            Operation.DELETE,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        ),
        AclResource.CLUSTER: (
            Operation.CREATE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
        ),
    }
)
"""All operations by resource type, as in Kafka's AclEntry.supportedOperations."""
EVERY: Mapping[AclResource, int] = MappingProxyType(
    {resource: sum(1 << each for each in operations) for resource, operations in SUPPORTED.items()}
)


def operations_of(broker: Broker, call: Call, resource: AclResource, name: str = CLUSTER_NAME) -> int:
    """The operations that the caller may do on a resource, as bits."""
    authorizer = broker.metadata.authorizer
    if authorizer is None:
        return EVERY[resource]
    return authorizer.operations(call.principal, call.host, SUPPORTED[resource], resource, name)


def cluster_operations_of(broker: Broker, call: Call) -> int:
    """The operations that the caller may do on the cluster, as bits. The result is 0 if the caller may not describe the
    cluster."""
    if not is_shown(broker, call, Operation.DESCRIBE, AclResource.CLUSTER):
        return 0
    return operations_of(broker, call, AclResource.CLUSTER)
