"""A partition: a Log with a leader epoch, in-sync replicas, and requests that wait for it.

The high watermark of a partition with one replica is the end of the written log, or of the synced log with
`kpybroker.fsync=always`. With more replicas, it is the log end that every possible in-sync replica has reached; see
`followers`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.replication.partition.flush_queue import FlushQueue, Waiter
from kpybroker.replication.partition.followers import Follower, Followers
from kpybroker.replication.partition.partition_events import PartitionEvents
from kpybroker.replication.partition.replica_rules import ReplicaRules
from kpybroker.storage.log.admission import NOTHING, Appended
from kpybroker.storage.log.log import Log
from kpybroker.topics import is_internal
from kpybroker.wire.records.batch import split
from kpybroker.wire.records.markers import Marker, encode_marker

if TYPE_CHECKING:
    from kpybroker.config import LogSettings
    from kpybroker.metadata.image import PartitionImage
    from kpybroker.storage.producers.transactions import Verification
    from kpybroker.wire.records.batch import Batch

log = logging.getLogger(__name__)

WAITERS_LIMIT = 100_000
"""The most Produce requests that wait for one partition."""
FLUSH_RETRY_S = 0.1
"""The delay after which a flush is retried for which no file descriptor was left."""


class Partition:
    """One replica that this broker hosts."""

    __slots__ = (
        "_dirty",
        "_events",
        "_on_advance",
        "_produces",
        "_produces_here",
        "_queue",
        "_rules",
        "_sync",
        "epoch_start",
        "fetch_templates",
        "fetches",
        "followers",
        "index",
        "is_internal",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "offline",
        "partition_epoch",
        "produce_templates",
        "replicas",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        rules: ReplicaRules,
        queue: FlushQueue,
        events: PartitionEvents[Partition],
        topic: str,
        topic_id: bytes,
        index: int,
        storage: Log,
    ) -> None:
        self._rules, self._queue, self._events = rules, queue, events
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = storage
        self.is_internal = is_internal(topic)
        self.leader_id = -1
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.epoch_start = 0
        """The end of the log when this broker became the leader."""
        self.isr: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.followers: Followers | None = None
        """The other replicas while this broker leads; empty while it follows; None if this is the only replica."""
        self.offline: str | None = None
        """The reason why this partition is offline, such as damage or deletion; None while it is online."""
        self.fetches: dict[Waiter, None] = {}
        """Parked Fetches, in order of arrival."""
        self._on_advance: Callable[[], None] | None = None
        self._produces: deque[tuple[int, Waiter]] = deque()
        self._produces_here: deque[tuple[int, Waiter]] = deque()
        """Produce requests with acks=1, which wait for this log only. Used if there are other replicas."""
        self._dirty = False
        self.produce_templates: dict[int, Any] = {}
        self.fetch_templates: dict[int, Any] = {}
        """Caches of `serving`, by version: the encoded parts of this partition's responses. This class does not read
        them."""
        self._sync: asyncio.Task[None] | None = None
        storage.tell(self._written)

    def __repr__(self) -> str:
        return f"<{self.topic}-{self.index} epoch {self.leader_epoch} end {self.log.end}>"

    def configure(self, settings: LogSettings) -> None:
        """Adopt the topic's settings. If they now require fsync, sync the records that are not on disk yet."""
        self.log.configure(settings)
        if settings.fsync_always and self.offline is None:
            self._start_sync()

    # ---- leadership

    def take_lead(self) -> None:
        """Begin the leader epoch. If this is the only in-sync replica, commit its log, unless min.insync.replicas
        requires more."""
        self.log.begin_epoch(self.leader_epoch)
        self.epoch_start = self.log.end
        if self.log.settings.fsync_always:
            self._start_sync()
        self.advance()

    @property
    def leads(self) -> bool:
        """Whether this broker is the leader."""
        return self.leader_id == self._rules.node_id

    def become(self, image: PartitionImage) -> bool:
        """Adopt the leader, epoch, replicas and ISR. Returns whether this broker's leadership has begun or
        ended."""
        if image.partition_epoch <= self.partition_epoch and image.leader_epoch == self.leader_epoch:
            return False
        led, has_new_leader = self.leads, image.leader_epoch != self.leader_epoch
        if self._dirty and has_new_leader:
            self.flush()
        self.leader_id, self.leader_epoch = image.leader, image.leader_epoch
        self.partition_epoch = image.partition_epoch
        if led and self.leads:
            self._events.isr_changed(len(self.isr), len(image.isr))
        self.isr, self.replicas = tuple(image.isr), tuple(image.replicas)
        if led and not self.leads:
            self._wake_all()
        self._count_replicas(has_new_leader)
        if self.leads and has_new_leader:
            self.take_lead()
        elif self.leads:
            self.advance()
        return has_new_leader and (led or self.leads)

    def _count_replicas(self, has_new_leader: bool) -> None:
        rules, known = self._rules, self.followers
        if known is not None and has_new_leader:
            known.wake(self._queue.woken)
        if self.leads and self.replicas == (rules.node_id,):
            self.followers = None
            if self._produces_here:
                self._produces = deque(sorted((*self._produces, *self._produces_here), key=itemgetter(0)))
                self._produces_here.clear()
            return
        if has_new_leader or known is None:
            self.followers = Followers(rules.node_id, rules.lag_max_ms, rules.may_join)
        assert self.followers is not None
        if self.leads:
            self.followers.take(self.replicas, self.isr, rules.now_ms())

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raises FENCED_LEADER_EPOCH if the client has older metadata, or UNKNOWN_LEADER_EPOCH if it has newer metadata
        (KIP-320)."""
        if current_leader_epoch == -1 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def require_online(self) -> None:
        if self.offline is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline)

    def require_in_sync(self, min_isr: int) -> None:
        """Check the ISR before an append with acks=all. Raises NOT_ENOUGH_REPLICAS, but never for a partition
        with one replica."""
        if self.followers is None:
            return
        min_isr = self.followers.required(min_isr)
        if len(self.isr) < min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"{len(self.isr)} in sync, min.insync.replicas is {min_isr}"
            )

    # ---- append

    def append(
        self,
        batches: list[Batch],
        now_ms: int,
        *,
        client: bool = True,
        verified: Verification | None = None,
        known: int = NOTHING,
    ) -> Appended:
        """Validate a batch, unless it is `known` to be valid, and append it to the queue of the next flush. Raises
        KafkaError."""
        if self.offline is not None:
            self.require_online()
        if self.log.files.device.is_slow or self.log.behind is not None:
            self.log.require_room()
        try:
            appended = self.log.append(
                batches, self.leader_epoch, now_ms, client=client, verified=verified, known=known
            )
        except Damage as damage:
            self.fail(str(damage))
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage)) from damage
        if not self._dirty:
            self._dirty = True
            self._queue.dirty.append(self)
        return appended

    def append_marker(self, marker: Marker, transaction_version: int, now_ms: int) -> int:
        """Append the marker that ends a producer's transaction, and return the log end after it. It takes effect when
        it is committed.

        Raises INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, NOT_ENOUGH_REPLICAS, KAFKA_STORAGE_ERROR.
        """
        self.require_in_sync(self.log.settings.min_insync_replicas)
        self.log.producers.check_marker(marker, transaction_version)
        return self.append(split(encode_marker(marker, now_ms)), now_ms, client=False).last_offset + 1

    def flush(self) -> None:
        """Write the queued batches, and advance the high watermark. This never raises an exception: after damage,
        `offline` has the reason.

        If there is no file descriptor left, the batches and their waiters stay queued, and the flush is retried.
        """
        self._dirty = False
        try:
            self.log.flush(wait=False)
        except KafkaError as refusal:
            log.warning("%r is not written yet: %s", self, refusal)
            asyncio.get_running_loop().call_later(FLUSH_RETRY_S, self._flush_again)
            return
        except Damage as damage:
            self.fail(str(damage))
            return
        if self.log.settings.fsync_always:
            self._start_sync()
        else:
            self.advance()

    def _flush_again(self) -> None:
        if not self._dirty and self.offline is None:
            self._dirty = True
            self._queue.dirty.append(self)
        self._queue.flush()

    def _written(self) -> None:
        """Continue after a thread has written the batches of a flush, or after the log has failed."""
        if self.log.offline is not None:
            self.fail(self.log.offline)
        elif self.log.settings.fsync_always:
            self._start_sync()
        else:
            self.advance()
        self._events.written(self)
        if not self.leads:
            self._queue.woken.extend(self.fetches)
        self._queue.flush()

    def _start_sync(self) -> None:
        if self.log.synced_end >= self.log.written_end:
            self.advance()  # another task has synced the log, such as a move to another directory
        elif self._sync is None:
            self._sync = asyncio.get_running_loop().create_task(self._sync_until_even())

    async def _sync_until_even(self) -> None:
        """Sync the log, with one fdatasync at a time. Each covers all records that were written before it began."""
        try:
            while self.log.synced_end < self.log.written_end and self.offline is None:
                await self.log.sync()
                self.advance()
                self._queue.flush()
            self.advance()
            self._queue.flush()
        except Damage as damage:
            self.fail(str(damage))
            self._queue.flush()
        finally:
            self._sync = None

    @property
    def committable_end(self) -> int:
        """The offset up to which the log is as durable as the settings require."""
        return self.log.synced_end if self.log.settings.fsync_always else self.log.files.written_end

    def on_advance(self, callback: Callable[[], None]) -> None:
        """Set the callback for an advance of the high watermark, for a coordinator that has its state in this log."""
        self._on_advance = callback

    def advance(self) -> None:
        """Advance the high watermark as far as the in-sync replicas allow, and wake the requests that wait for it."""
        storage = self.log
        end = self.committable_end
        if self.followers is not None:
            end = self._agreed_end(self.followers, end)
        if end <= storage.high_watermark:
            return
        storage.advance(end)
        woken = self._queue.woken
        produces = self._produces
        while produces and produces[0][0] <= end:
            woken.append(produces.popleft()[1])
        if self.fetches:
            woken.extend(self.fetches)
        if self.followers is not None:
            self.followers.note()
        if self._on_advance is not None:
            self._on_advance()

    def _agreed_end(self, followers: Followers, own_end: int) -> int:
        """The log end that every possible in-sync replica has reached; -1 on a follower. Wakes the requests that wait
        for this log only."""
        if not self.leads:
            return -1
        woken = self._queue.woken
        while self._produces_here and self._produces_here[0][0] <= own_end:
            woken.append(self._produces_here.popleft()[1])
        if own_end > followers.woken_at:
            followers.wake(woken, own_end)
        agreed = followers.agreed_end(own_end, self.log.settings.min_insync_replicas, self._rules.now_ms())
        if self._rules.is_rack_aware and agreed > self.log.high_watermark:
            followers.wake(woken)
        return agreed

    def wake_fetches(self) -> None:
        """Wake consumers that fetch from this follower, because its high watermark has advanced (KIP-392)."""
        if self.fetches:
            self._queue.woken.extend(self.fetches)
            self._queue.flush()

    def fetched_by(self, follower: Follower, offset: int, log_start: int, broker_epoch: int) -> None:
        """Record a Fetch by a follower that has not diverged. The follower may join the ISR or advance the high
        watermark."""
        followers = self.followers
        assert followers is not None, "a single replica has no followers"
        follower.fetched(offset, log_start, broker_epoch, self.committable_end, self._rules.now_ms())
        self._propose(followers, followers.with_caught_up(follower, self.log.high_watermark, self.epoch_start))
        self.advance()

    def drop_lagging(self) -> None:
        """Propose an ISR without the followers that have not caught up for replica.lag.time.max.ms."""
        if self.followers is not None and self.leads and self.offline is None:
            now_ms = self._rules.now_ms()
            self._propose(self.followers, self.followers.without_lagging(self.committable_end, now_ms))
            self.advance()  # a follower that held the high watermark back may no longer count

    def _propose(self, followers: Followers, isr: tuple[int, ...] | None) -> None:
        if isr is not None:
            log.info("%r: ISR %s, proposed %s", self, self.isr, isr)
            followers.propose(isr)
            self._events.propose(self)

    def when_committed(self, end: int, waiter: Waiter) -> None:
        """Settle the waiter when the high watermark reaches `end`. Raises REQUEST_TIMED_OUT if too many wait."""
        self._wait(self._produces, end, waiter)

    def when_written(self, end: int, waiter: Waiter) -> None:
        """Settle the waiter when this log is durable up to `end`. Raises the same errors as `when_committed`."""
        self._wait(self._produces if self.followers is None else self._produces_here, end, waiter)

    def _wait(self, waiting: deque[tuple[int, Waiter]], end: int, waiter: Waiter) -> None:
        if len(waiting) >= WAITERS_LIMIT:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "too many Produce requests wait for this partition")
        waiting.append((end, waiter))

    @property
    def refusal(self) -> KafkaError | None:
        """The error for requests that wait for this partition, if it is offline or not led by this broker; else
        None."""
        if self.offline is not None:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline)
        return None if self.leads else KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def fail(self, why: str) -> None:
        """Go offline, and settle all waiters."""
        if self.offline is None and self.log.offline is None:  # otherwise `self.log` has logged the reason
            log.error("partition %s-%d is offline: %s", self.topic, self.index, why)
        self.offline = why
        self._wake_all()

    def retire(self) -> None:
        """Stop, because the broker no longer hosts this replica. All waiters are settled, and refused."""
        self.offline = "this broker no longer hosts the partition"
        self.leader_id = -1
        self._wake_all()

    def _wake_all(self) -> None:
        woken = self._queue.woken
        for waiting in (self._produces, self._produces_here):
            woken.extend(waiter for _, waiter in waiting)
            waiting.clear()
        woken.extend(self.fetches)
        if self.followers is not None:
            self.followers.wake(woken)
