"""Replication throttles: how fast replicas that are not in sync may be filled (KIP-73).

A replica is slowed where three things hold: the broker has a rate (`leader.` or `follower.replication.throttled.rate`),
the topic names the replica (`leader.` or `follower.replication.throttled.replicas`: `partition:broker`, or `*`), and it
is not in sync. What was sent is paid off at the rate before more is, so in any time no more passes than the rate allows
and one response over it. Kafka counts throttled replicas that are in sync too; here only what may be slowed counts.
"""

from __future__ import annotations

from collections.abc import Callable

from kpybroker.config import LogSettings
from kpybroker.replication.partition.partition import Partition

ALL = "*"
NO_RATE = (1 << 63) - 1
"""The default of both rates: nothing is slowed."""
CLOSED_WAIT_MS = 1000
"""At a rate of nothing: when to look again."""


class Throttle:
    """One direction of a broker. `named` says which replicas a topic names; `now_ms` is the loop's clock.

    Rates are bytes a second. What is owed is kept in thousandths of a byte: a whole number at any rate and time.
    """

    def __init__(self, node_id: int, named: Callable[[LogSettings], frozenset[str]], now_ms: Callable[[], int]) -> None:
        self._node_id = node_id
        self._named = named
        self._now_ms = now_ms
        self._owed = 0
        self._since_ms = 0
        self.rate = NO_RATE

    def limit(self, rate: int) -> None:
        """From now on so many bytes a second; what is owed stays owed."""
        if rate != self.rate:
            self._pay()
            self.rate = rate

    def slows(self, partition: Partition, replica_id: int) -> bool:
        """What brings this replica up counts, and may have to wait."""
        if self.rate == NO_RATE or replica_id in partition.isr:
            return False
        named = self._named(partition.log.settings)
        return ALL in named or f"{partition.index}:{self._node_id}" in named

    @property
    def is_limited(self) -> bool:
        """There is a rate, or something owed from when there was one."""
        return self.rate != NO_RATE or self._owed > 0

    @property
    def must_wait(self) -> bool:
        """There is still something owed."""
        self._pay()
        return self._owed > 0 or self.rate == 0

    @property
    def wait_ms(self) -> int:
        """How long until nothing is owed."""
        self._pay()
        return -(-self._owed // self.rate) if self.rate else CLOSED_WAIT_MS

    def count(self, size_bytes: int) -> None:
        """So much has passed."""
        self._pay()
        self._owed += size_bytes * 1000

    def _pay(self) -> None:
        now_ms = self._now_ms()
        self._owed = max(self._owed - (now_ms - self._since_ms) * self.rate, 0)
        self._since_ms = now_ms
