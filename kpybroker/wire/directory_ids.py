"""Special values in place of a log directory's id (KIP-858)."""

from kpybroker.wire.codec.primitives import ZERO_UUID

MIGRATING = ZERO_UUID
"""Unknown, in a cluster that was migrated from ZooKeeper."""
UNASSIGNED = (1).to_bytes(16)
"""Not assigned yet: the broker has several directories, and will report it."""
LOST = (2).to_bytes(16)
"""In a directory that the broker no longer has."""
