"""What stands in the place of a log directory's id (KIP-858)."""

from kpybroker.wire.codec.primitives import ZERO_UUID

MIGRATING = ZERO_UUID
"""In none that is known, by a cluster that came from ZooKeeper."""
UNASSIGNED = (1).to_bytes(16)
"""In none yet: the broker has several and says so later."""
LOST = (2).to_bytes(16)
"""In none that the broker has."""
