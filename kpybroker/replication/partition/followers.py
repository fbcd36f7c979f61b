"""What a leader knows about its followers: how far each has replicated, and which are in sync.

The high watermark waits for the maximal in-sync set: a proposed member counts at once, and a removed one counts until
the controller has confirmed the removal (KIP-497). The high watermark does not move while fewer replicas are in sync
than min.insync.replicas (KIP-966). Times are milliseconds of the loop's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from kpybroker.replication.partition.flush_queue import Waiter
from kpybroker.replication.partition.news import NEVER_MS, News

UNKNOWN = -1
"""A log end or broker epoch that is not known yet."""


class Follower:
    """Another replica, as its Fetches in this leader epoch describe it."""

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
        """The last time when the follower had everything that the leader had."""
        self._fetched_ms = caught_up_ms
        self._end_at_fetch = 0
        self.told_high_watermark = UNKNOWN
        """The high watermark in the last response to it."""
        self.news: News[Any] | None = None
        """The news of its fetch session, in which the partition is `want`."""
        self.want: Hashable = None

    def fetched(self, offset: int, log_start: int, broker_epoch: int, leader_end: int, now_ms: int) -> None:
        """Note a Fetch from `offset`: the follower has everything below. If `offset` has reached the end that the
        leader had at the follower's previous Fetch, the follower was caught up at that time."""
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self._end_at_fetch:
            self.caught_up_ms = max(self.caught_up_ms, self._fetched_ms)
        self.log_end, self.log_start, self.broker_epoch = offset, log_start, broker_epoch
        self._fetched_ms, self._end_at_fetch = now_ms, leader_end

    def tell(self, high_watermark: int) -> None:
        """Note the high watermark in a response to it."""
        self.told_high_watermark = high_watermark

    def attach(self, news: News[Any], want: Hashable) -> None:
        """The follower's session requests this partition by `want`: note changes in the session's news."""
        self.news, self.want = news, want

    def detach(self, want: Hashable) -> None:
        """Its session no longer requests `want`."""
        if self.want is want:
            self.news = self.want = None

    def is_caught_up(self, leader_end: int, lag_max_ms: int, now_ms: int) -> bool:
        """Whether it has everything, or had everything at some time within replica.lag.time.max.ms."""
        return self.log_end == leader_end or now_ms - self.caught_up_ms <= lag_max_ms


class Followers:
    """The other replicas of a partition that this broker leads; empty for one that it follows.

    may_join: whether a node that fetched with a broker epoch may be in sync: it is registered with that epoch, and not
    fenced.
    """

    __slots__ = ("_lag_max_ms", "_may_join", "_node_id", "by_id", "isr", "proposed", "woken_at")

    def __init__(self, node_id: int, lag_max_ms: int, may_join: Callable[[int, int], bool]) -> None:
        self._node_id = node_id
        self._lag_max_ms = lag_max_ms
        self._may_join = may_join
        self.by_id: dict[int, Follower] = {}
        self.isr: tuple[int, ...] = ()
        """The in-sync set that the controller has committed."""
        self.proposed: tuple[int, ...] | None = None
        """The in-sync set that was proposed to the controller, until the metadata brings its decision."""
        self.woken_at = UNKNOWN
        """The log end at which the followers were last woken."""

    def take(self, replicas: tuple[int, ...], isr: tuple[int, ...], now_ms: int) -> None:
        """Adopt the state that the controller has committed. A follower that stays keeps its progress."""
        self.by_id = {
            node_id: self.by_id.get(node_id) or Follower(node_id, now_ms if node_id in isr else NEVER_MS)
            for node_id in replicas
            if node_id != self._node_id
        }
        self.isr = isr
        self.proposed = None

    def note(self) -> None:
        """Let each follower's next Fetch look at this partition."""
        for follower in self.by_id.values():
            news = follower.news
            if news is not None:
                news.wants[follower.want] = None

    def wake(self, woken: list[Waiter], end: int = UNKNOWN) -> None:
        """Like `note`, and also settle parked Fetches. end: the log end that is the reason."""
        if end > self.woken_at:
            self.woken_at = end
        for follower in self.by_id.values():
            news = follower.news
            if news is not None:
                news.wants[follower.want] = None
                if news.waiter is not None:
                    woken.append(news.waiter)

    def propose(self, isr: tuple[int, ...]) -> None:
        """Note that this set is proposed to the controller. It counts until new metadata comes, or until `withdraw`."""
        self.proposed = isr

    def withdraw(self) -> None:
        """Drop the proposal: the controller certainly did not accept it, or it changes nothing."""
        self.proposed = None

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """All nodes that may be in sync: the controller may have accepted a proposal before the leader knows."""
        proposed = self.proposed or ()
        return (*self.isr, *(node_id for node_id in proposed if node_id not in self.isr))

    def required(self, min_isr: int) -> int:
        """How many replicas must be in sync: min.insync.replicas, but at most the number of all replicas."""
        return min(min_isr, len(self.by_id) + 1)

    def agreed_end(self, own_end: int, min_isr: int, now_ms: int) -> int:
        """The end that all in-sync replicas have; UNKNOWN if too few are in sync.

        A follower that has just caught up counts too, so that it can join."""
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
        """The in-sync set with this follower, to be proposed; None if it cannot join, or a proposal is pending."""
        if self.proposed is not None or follower.node_id in self.isr:
            return None
        if follower.log_end < max(high_watermark, epoch_start) or not self._is_eligible(follower):
            return None
        return (*self.isr, follower.node_id)

    def without_lagging(self, own_end: int, now_ms: int) -> tuple[int, ...] | None:
        """The in-sync set without lagging members, to be proposed; None if none lags, or a proposal is pending."""
        if self.proposed is not None:
            return None
        left = tuple(
            node_id
            for node_id in self.isr
            if (follower := self.by_id.get(node_id)) is None or follower.is_caught_up(own_end, self._lag_max_ms, now_ms)
        )
        return left if len(left) < len(self.isr) else None
