"""Special values in place of a log directory's id (KIP-858)."""

from kpybroker.wire.codec.primitives import ZERO_UUID

MIGRATING = ZERO_UUID
"""The directory is unknown, in a cluster that was migrated from ZooKeeper."""
UNASSIGNED = (1).to_bytes(16)
"""The directory is not assigned yet: the broker has several directories, and will report the one that it chooses."""
LOST = (2).to_bytes(16)
"""The replica was in a directory that the broker no longer has."""
RESERVED_BELOW = 100
"""As a number, the first id that is not reserved for special values."""


def is_reserved(directory: bytes) -> bool:
    """Whether an id is reserved for special values, so that no directory has it.

    Apache Kafka compares the last 8 bytes as a signed number.
    """
    return not any(directory[:8]) and int.from_bytes(directory[8:], signed=True) < RESERVED_BELOW
