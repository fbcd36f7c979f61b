"""What a leader knows of its followers, and what follows from it: how far has everybody come, and who is in sync?

The high watermark waits for the largest set that may be in force: members that were proposed count at once, members
that are to go count until the controller has said so (KIP-497). It stands still while fewer are in sync than
min.insync.replicas asks (KIP-966). Times are milliseconds of the loop's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from kpybroker.replication.partition.flush_queue import Waiter
from kpybroker.replication.partition.news import NEVER_MS, News

UNKNOWN = -1
"""A log end, or a broker's epoch, that nobody has told."""


class Follower:
    """One other replica, by what its fetches in this leader epoch have told."""

    __slots__ = (
        "_end_at_fetch",
        "_fetched_ms",
        "broker_epoch",
        "caught_up_ms",
        "log_end",
        "log_start",
        "news",
        "node_id",
        "told_high_watermark",
        "want",
    )

    def __init__(self, node_id: int, caught_up_ms: int) -> None:
        self.node_id = node_id
        self.broker_epoch = UNKNOWN
        self.log_end = UNKNOWN
        self.log_start = UNKNOWN
        self.caught_up_ms = caught_up_ms
        """When it last had everything that the leader had at that time."""
        self._fetched_ms = caught_up_ms
        self._end_at_fetch = 0
        self.told_high_watermark = UNKNOWN
        """The one that the last answer to it had."""
        self.news: News[Any] | None = None
        """Of its fetch session, where the partition is `want`."""
        self.want: Hashable = None

    def fetched(self, offset: int, log_start: int, broker_epoch: int, leader_end: int, now_ms: int) -> None:
        """It asks from `offset` on: it has all below. What it had reached by its fetch before counts for that time."""
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self._end_at_fetch:
            self.caught_up_ms = max(self.caught_up_ms, self._fetched_ms)
        self.log_end, self.log_start, self.broker_epoch = offset, log_start, broker_epoch
        self._fetched_ms, self._end_at_fetch = now_ms, leader_end

    def tell(self, high_watermark: int) -> None:
        """A response tells it this high watermark."""
        self.told_high_watermark = high_watermark

    def attach(self, news: News[Any], want: Hashable) -> None:
        """Its session asks for this partition by `want`: note changes in the session's news."""
        self.news, self.want = news, want

    def detach(self, want: Hashable) -> None:
        """Its session no longer asks by `want`."""
        if self.want is want:
            self.news = self.want = None

    def is_caught_up(self, leader_end: int, lag_max_ms: int, now_ms: int) -> bool:
        """It has everything, or had within replica.lag.time.max.ms."""
        return self.log_end == leader_end or now_ms - self.caught_up_ms <= lag_max_ms


class Followers:
    """The other replicas of a partition that this broker leads; of one that it follows, nobody.

    may_join: whether a node, with the broker epoch it fetched with, can be in sync: registered so, and not fenced.
    """

    __slots__ = ("_lag_max_ms", "_may_join", "_node_id", "by_id", "isr", "proposed", "woken_at")

    def __init__(self, node_id: int, lag_max_ms: int, may_join: Callable[[int, int], bool]) -> None:
        self._node_id = node_id
        self._lag_max_ms = lag_max_ms
        self._may_join = may_join
        self.by_id: dict[int, Follower] = {}
        self.isr: tuple[int, ...] = ()
        """In sync, as the controller has committed it."""
        self.proposed: tuple[int, ...] | None = None
        """What the controller has been asked for, until the metadata says what came of it."""
        self.woken_at = UNKNOWN
        """The end that the followers' fetches were last told of."""

    def take(self, replicas: tuple[int, ...], isr: tuple[int, ...], now_ms: int) -> None:
        """What the controller has committed; who stays keeps what is known of it."""
        self.by_id = {
            node_id: self.by_id.get(node_id) or Follower(node_id, now_ms if node_id in isr else NEVER_MS)
            for node_id in replicas
            if node_id != self._node_id
        }
        self.isr = isr
        self.proposed = None

    def note(self) -> None:
        """There is something to tell: the followers' next fetches look here."""
        for follower in self.by_id.values():
            news = follower.news
            if news is not None:
                news.wants[follower.want] = None

    def wake(self, woken: list[Waiter], end: int = UNKNOWN) -> None:
        """There is something to tell at once, such as a log end: who is parked looks here now."""
        if end > self.woken_at:
            self.woken_at = end
        for follower in self.by_id.values():
            news = follower.news
            if news is not None:
                news.wants[follower.want] = None
                if news.waiter is not None:
                    woken.append(news.waiter)

    def propose(self, isr: tuple[int, ...]) -> None:
        """Ask the controller for this set; it counts until the metadata answers, or `withdraw`."""
        self.proposed = isr

    def withdraw(self) -> None:
        """The proposal was certainly not taken, or changes nothing."""
        self.proposed = None

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Everybody who may be in sync by now: a proposal may have been taken before its sender knows."""
        proposed = self.proposed or ()
        return (*self.isr, *(node_id for node_id in proposed if node_id not in self.isr))

    def required(self, min_isr: int) -> int:
        """How many must be in sync: never more than there are replicas."""
        return min(min_isr, len(self.by_id) + 1)

    def agreed_end(self, own_end: int, min_isr: int, now_ms: int) -> int:
        """The end of what everybody in sync has. One that has just caught up is waited for, so that it can join."""
        if len(self.isr) < self.required(min_isr):
            return UNKNOWN
        end, members = own_end, self.maximal_isr
        for follower in self.by_id.values():
            if follower.log_end < end and (
                follower.node_id in members
                or (follower.is_caught_up(own_end, self._lag_max_ms, now_ms) and self._is_eligible(follower))
            ):
                end = follower.log_end
        return end

    def _is_eligible(self, follower: Follower) -> bool:
        return self._may_join(follower.node_id, follower.broker_epoch)

    def with_caught_up(self, follower: Follower, high_watermark: int, epoch_start: int) -> tuple[int, ...] | None:
        """The set to propose where this follower can join it, else None; one proposal at a time."""
        if self.proposed is not None or follower.node_id in self.isr:
            return None
        if follower.log_end < max(high_watermark, epoch_start) or not self._is_eligible(follower):
            return None
        return (*self.isr, follower.node_id)

    def without_lagging(self, own_end: int, now_ms: int) -> tuple[int, ...] | None:
        """The set to propose where members have fallen behind for too long, else None."""
        if self.proposed is not None:
            return None
        left = tuple(
            node_id
            for node_id in self.isr
            if (follower := self.by_id.get(node_id)) is None or follower.is_caught_up(own_end, self._lag_max_ms, now_ms)
        )
        return left if len(left) < len(self.isr) else None
