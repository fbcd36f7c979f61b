"""Special values in place of a log directory's id (KIP-858)."""

from kpybroker.wire.codec.primitives import ZERO_UUID

MIGRATING = ZERO_UUID
"""The directory is unknown, in a cluster that was migrated from ZooKeeper."""
UNASSIGNED = (1).to_bytes(16)
"""The directory is not assigned yet: the broker has several directories, and will report the one that it chooses."""
LOST = (2).to_bytes(16)
"""The replica was in a directory that the broker no longer has."""
