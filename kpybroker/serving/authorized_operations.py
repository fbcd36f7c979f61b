"""The operations that clients are authorized for, as responses show them: bits of Kafka's AclOperation codes.

Without an authorizer, everything that can be done to a resource is allowed.
"""

from __future__ import annotations

from enum import IntFlag

NOT_ASKED = -(2**31)
"""In place of the operations, where the request does not ask for them."""


class Operation(IntFlag):
    """Each is the bit of its AclOperation code."""

    READ = 1 << 3
    WRITE = 1 << 4
    CREATE = 1 << 5
    DELETE = 1 << 6
    ALTER = 1 << 7
    DESCRIBE = 1 << 8
    CLUSTER_ACTION = 1 << 9
    DESCRIBE_CONFIGS = 1 << 10
    ALTER_CONFIGS = 1 << 11
    IDEMPOTENT_WRITE = 1 << 12


_CONFIGS = Operation.DESCRIBE_CONFIGS | Operation.ALTER_CONFIGS
TOPIC_OPERATIONS = int(
    Operation.READ
    | Operation.WRITE
    | Operation.CREATE
    | Operation.DELETE
    | Operation.ALTER
    | Operation.DESCRIBE
    | _CONFIGS
)
GROUP_OPERATIONS = int(Operation.READ | Operation.DELETE | Operation.DESCRIBE | _CONFIGS)
CLUSTER_OPERATIONS = int(
    Operation.CREATE
    | Operation.ALTER
    | Operation.DESCRIBE
    | Operation.CLUSTER_ACTION
    | _CONFIGS
    | Operation.IDEMPOTENT_WRITE
)
"""All operations on a resource of each type, as Kafka's AclEntry.supportedOperations has them."""
