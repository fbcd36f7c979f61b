"""Replication throttles, which limit the replication of replicas outside the ISR (KIP-73).

A throttle applies to a replica under three conditions: the broker has a rate (`leader.` or
`follower.replication.throttled.rate`), the topic lists the replica (`leader.` or
`follower.replication.throttled.replicas`: `partition:broker`, or `*`), and the replica is not in sync. Sent bytes are
counted as a debt, which decreases at the rate. More bytes are sent only when the debt is zero. So in any period, the
rate is exceeded by at most one response. Kafka also counts the bytes of listed replicas that are in sync; kpybroker
counts only replicas that may be slowed.
"""

from __future__ import annotations

from collections.abc import Callable

from kpybroker.config import LogSettings
from kpybroker.replication.partition.partition import Partition

ALL = "*"
NO_RATE = (1 << 63) - 1
"""The default of both rates: no throttle."""
CLOSED_WAIT_MS = 1000
"""The time to wait at a rate of 0 before the next check."""


class Throttle:
    """The throttle of one direction of a broker. `named` returns the replicas that a topic's settings list, and
    `now_ms` the time of the event loop's clock.

    Rates are in bytes per second. The debt is kept in thousandths of a byte, so that it is a whole number.
    """

    def __init__(self, node_id: int, named: Callable[[LogSettings], frozenset[str]], now_ms: Callable[[], int]) -> None:
        self._node_id = node_id
        self._named = named
        self._now_ms = now_ms
        self._owed = 0
        self._since_ms = 0
        self.rate = NO_RATE

    def limit(self, rate: int) -> None:
        """Change the rate, in bytes per second. The debt does not change."""
        if rate != self.rate:
            self._pay()
            self.rate = rate

    def slows(self, partition: Partition, replica_id: int) -> bool:
        """Whether bytes for this replica are counted, and may have to wait."""
        if self.rate == NO_RATE or replica_id in partition.isr:
            return False
        named = self._named(partition.log.settings)
        return ALL in named or f"{partition.index}:{self._node_id}" in named

    @property
    def is_limited(self) -> bool:
        """Whether there is a rate, or a remaining debt from an earlier rate."""
        return self.rate != NO_RATE or self._owed > 0

    @property
    def must_wait(self) -> bool:
        """Whether there is a debt."""
        self._pay()
        return self._owed > 0 or self.rate == 0

    @property
    def wait_ms(self) -> int:
        """Milliseconds until the debt is paid off."""
        self._pay()
        return -(-self._owed // self.rate) if self.rate else CLOSED_WAIT_MS

    def count(self, size_bytes: int) -> None:
        """Add sent or received bytes to the debt."""
        self._pay()
        self._owed += size_bytes * 1000

    def _pay(self) -> None:
        now_ms = self._now_ms()
        self._owed = max(self._owed - (now_ms - self._since_ms) * self.rate, 0)
        self._since_ms = now_ms
