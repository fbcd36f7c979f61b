"""Tracks the followers of a partition on its leader: how far each has replicated, and which ones are in sync.

The high watermark depends on the maximal ISR: a proposed member counts at once, and a removed member counts
until the controller has confirmed its removal (KIP-497). The high watermark does not advance while fewer replicas than
min.insync.replicas are in sync (KIP-966). Times are milliseconds of the event loop's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from kpybroker.replication.partition.flush_queue import Waiter
from kpybroker.replication.partition.news import NEVER_MS, News

UNKNOWN = -1
"""A log end or broker epoch that is not known yet."""


class Follower:
    """The state of another replica, according to its Fetches in this leader epoch."""

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
        """The last time at which the follower had all records of the leader."""
        self._fetched_ms = caught_up_ms
        self._end_at_fetch = 0
        self.told_high_watermark = UNKNOWN
        """The high watermark in the last response to this follower."""
        self.news: News[Any] | None = None
        """The news of the follower's fetch session, in which `want` represents this partition."""
        self.want: Hashable = None

    def fetched(self, offset: int, log_start: int, broker_epoch: int, leader_end: int, now_ms: int) -> None:
        """Note a Fetch from `offset`: the follower has all records below it. If `offset` has reached the log end that
        the leader had at the follower's previous Fetch, the follower was caught up at that time."""
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self._end_at_fetch:
            self.caught_up_ms = max(self.caught_up_ms, self._fetched_ms)
        self.log_end, self.log_start, self.broker_epoch = offset, log_start, broker_epoch
        self._fetched_ms, self._end_at_fetch = now_ms, leader_end

    def tell(self, high_watermark: int) -> None:
        """Note the high watermark in a response to this follower."""
        self.told_high_watermark = high_watermark

    def attach(self, news: News[Any], want: Hashable) -> None:
        """Note changes of this partition in the news of the follower's session, which requests the partition by
        `want`."""
        self.news, self.want = news, want

    def detach(self, want: Hashable) -> None:
        """Stop noting changes, because the follower's session no longer requests `want`."""
        if self.want is want:
            self.news = self.want = None

    def is_caught_up(self, leader_end: int, lag_max_ms: int, now_ms: int) -> bool:
        """Whether the follower has all records, or had all records at some time within replica.lag.time.max.ms."""
        return self.log_end == leader_end or now_ms - self.caught_up_ms <= lag_max_ms


class Followers:
    """The other replicas of a partition that this broker leads. It is empty for a partition that this broker follows.

    may_join: returns whether a node that fetched with a broker epoch may be in sync. It may if it is registered with
    that epoch and not fenced.
    """

    __slots__ = ("_lag_max_ms", "_may_join", "_node_id", "by_id", "isr", "proposed", "woken_at")

    def __init__(self, node_id: int, lag_max_ms: int, may_join: Callable[[int, int], bool]) -> None:
        self._node_id = node_id
        self._lag_max_ms = lag_max_ms
        self._may_join = may_join
        self.by_id: dict[int, Follower] = {}
        self.isr: tuple[int, ...] = ()
        """The ISR that the controller has committed."""
        self.proposed: tuple[int, ...] | None = None
        """The ISR that was proposed to the controller, until its decision arrives with the metadata."""
        self.woken_at = UNKNOWN
        """The log end at which the followers were last woken."""

    def take(self, replicas: tuple[int, ...], isr: tuple[int, ...], now_ms: int) -> None:
        """Adopt the state that the controller has committed. A follower that is still a replica keeps its progress."""
        self.by_id = {
            node_id: self.by_id.get(node_id) or Follower(node_id, now_ms if node_id in isr else NEVER_MS)
            for node_id in replicas
            if node_id != self._node_id
        }
        self.isr = isr
        self.proposed = None

    def note(self) -> None:
        """Let each follower's next Fetch check this partition."""
        for follower in self.by_id.values():
            news = follower.news
            if news is not None:
                news.wants[follower.want] = None

    def wake(self, woken: list[Waiter], end: int = UNKNOWN) -> None:
        """Like `note`, and also settle parked Fetches. `end` is the new log end, if that is the reason for the call."""
        if end > self.woken_at:
            self.woken_at = end
        for follower in self.by_id.values():
            news = follower.news
            if news is not None:
                news.wants[follower.want] = None
                if news.waiter is not None:
                    woken.append(news.waiter)

    def propose(self, isr: tuple[int, ...]) -> None:
        """Record that this set is proposed to the controller. It counts until new metadata arrives or `withdraw` is
        called."""
        self.proposed = isr

    def withdraw(self) -> None:
        """Drop the proposal, because the controller certainly did not accept it, or because it changes nothing."""
        self.proposed = None

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """All nodes that may be in sync, since the controller may have accepted a proposal before the leader knows
        it."""
        proposed = self.proposed or ()
        return (*self.isr, *(node_id for node_id in proposed if node_id not in self.isr))

    def required(self, min_isr: int) -> int:
        """The number of replicas that must be in sync: min.insync.replicas, but at most the number of all replicas."""
        return min(min_isr, len(self.by_id) + 1)

    def agreed_end(self, own_end: int, min_isr: int, now_ms: int) -> int:
        """The log end that all in-sync replicas have reached; UNKNOWN if too few are in sync.

        A follower that has just caught up also counts, so that it can join the ISR.
        """
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
        """The ISR to propose, with this follower added; None if it cannot join, or if a proposal is pending."""
        if self.proposed is not None or follower.node_id in self.isr:
            return None
        if follower.log_end < max(high_watermark, epoch_start) or not self._is_eligible(follower):
            return None
        return (*self.isr, follower.node_id)

    def without_lagging(self, own_end: int, now_ms: int) -> tuple[int, ...] | None:
        """The ISR to propose, without lagging members; None if no member lags, or if a proposal is pending."""
        if self.proposed is not None:
            return None
        left = tuple(
            node_id
            for node_id in self.isr
            if (follower := self.by_id.get(node_id)) is None or follower.is_caught_up(own_end, self._lag_max_ms, now_ms)
        )
        return left if len(left) < len(self.isr) else None
