"""A Log with leadership: epoch, in-sync replicas, waiters (DESIGN: concept 6).

A leader without other replicas is alone in sync: the high watermark is the end of what is written, or of what is synced
where `kpybroker.fsync` is `always`. With others it is what all who may be in sync have; see `followers`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.replication.partition.followers import Follower, Followers
from kpybroker.storage.log.admission import NOTHING, Appended
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import split
from kpybroker.wire.records.markers import Marker, encode_marker

if TYPE_CHECKING:
    from kpybroker.config import LogSettings
    from kpybroker.metadata.image import PartitionImage
    from kpybroker.replication.partition.hosting import Hosting
    from kpybroker.storage.producers.transactions import Verification
    from kpybroker.wire.records.batch import Batch
    from kpybroker.wire.response_templates import FetchForm

log = logging.getLogger(__name__)

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
WAITERS_LIMIT = 100_000
"""Produces waiting for the high watermark, per partition."""
FLUSH_RETRY_S = 0.1
"""When to write again what was queued and found no descriptor."""


class Waiter(Protocol):
    """Somebody who is called once after the flush that may have brought what it waits for."""

    def settle(self) -> None: ...


class Partition:
    """One replica that this broker hosts."""

    __slots__ = (
        "_dirty",
        "_hosting",
        "_produces",
        "_produces_here",
        "_sync",
        "acknowledgement",
        "epoch_start",
        "fetch_forms",
        "fetches",
        "followers",
        "index",
        "is_internal",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "offline",
        "on_advance",
        "partition_epoch",
        "replicas",
        "topic",
        "topic_id",
    )

    def __init__(self, hosting: Hosting, topic: str, topic_id: bytes, index: int, storage: Log) -> None:
        self._hosting = hosting
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = storage
        self.is_internal = topic in INTERNAL_TOPICS
        self.leader_id = -1
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.epoch_start = 0
        """The end of the log when this broker took the lead."""
        self.isr: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.followers: Followers | None = None
        """The other replicas, while this broker leads; nobody, while it follows; None where it is the only one."""
        self.offline: str | None = None
        """Why this partition serves nothing, once damage or deletion took it away."""
        self.fetches: dict[Waiter, None] = {}
        """Parked fetches, in order of arrival."""
        self.on_advance: Callable[[], None] | None = None
        """Called when the high watermark moved: the coordinator whose state this log is."""
        self._produces: deque[tuple[int, Waiter]] = deque()
        self._produces_here: deque[tuple[int, Waiter]] = deque()
        """Those with acks=1 that wait for this log alone; used where there are other replicas."""
        self._dirty = False
        self.acknowledgement: tuple[int, int, Any] = (-1, -1, None)
        """Version, log start and form of the response to a Produce; see `handlers.produce`."""
        self.fetch_forms: dict[int, FetchForm | None] = {}
        """Forms of the response to a Fetch by version, and by isolation; see `handlers.fetch`."""
        self._sync: asyncio.Task[None] | None = None
        storage.tell(self._written)

    def __repr__(self) -> str:
        return f"<{self.topic}-{self.index} epoch {self.leader_epoch} end {self.log.end}>"

    def configure(self, settings: LogSettings) -> None:
        """Take over the topic's settings. Where records are to be on disk from now on, those that are not get there."""
        self.log.settings = settings
        if settings.fsync_always and self.offline is None:
            self._start_sync()

    # ---- leadership

    def take_lead(self) -> None:
        """Begin the epoch: as the only in-sync replica, everything that is here has committed."""
        self.log.begin_epoch(self.leader_epoch)
        self.epoch_start = self.log.end
        if self.log.settings.fsync_always:
            self._start_sync()
        self.advance()

    @property
    def leads(self) -> bool:
        """This broker leads the partition."""
        return self.leader_id == self._hosting.node_id

    def become(self, image: PartitionImage) -> bool:
        """Take over what the metadata says: leader, epoch, replicas, in-sync set; whether a reign began or ended.

        Who waits for what only a leader does is told, and looks again.
        """
        if image.partition_epoch <= self.partition_epoch and image.leader_epoch == self.leader_epoch:
            return False
        led, has_new_leader = self.leads, image.leader_epoch != self.leader_epoch
        if self._dirty and has_new_leader:
            self.flush()
        self.leader_id, self.leader_epoch = image.leader, image.leader_epoch
        self.partition_epoch = image.partition_epoch
        if led and self.leads:
            self._hosting.isr_shrinks += len(image.isr) < len(self.isr)
            self._hosting.isr_expands += len(image.isr) > len(self.isr)
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
        hosting, known = self._hosting, self.followers
        if known is not None and has_new_leader:
            known.wake(hosting.woken)
        if self.leads and self.replicas == (hosting.node_id,):
            self.followers = None
            if self._produces_here:
                self._produces = deque(sorted((*self._produces, *self._produces_here), key=itemgetter(0)))
                self._produces_here.clear()
            return
        if has_new_leader or known is None:
            self.followers = Followers(hosting.node_id, hosting.lag_max_ms, hosting.may_join)
        assert self.followers is not None
        if self.leads:
            self.followers.take(self.replicas, self.isr, hosting.now_ms())

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a client whose metadata is older or newer than ours (KIP-320); -1 is not checked."""
        if current_leader_epoch == -1 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def require_online(self) -> None:
        if self.offline is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline)

    def require_in_sync(self, min_isr: int) -> None:
        """Before an append with acks=all. Raises NOT_ENOUGH_REPLICAS; the only replica is always enough."""
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
        """Validate what is not `known` to be sound, and queue; the flush that ends the read event
        writes it. Raises KafkaError."""
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
            self._hosting.dirty.append(self)
        return appended

    def append_marker(self, marker: Marker, transaction_version: int, now_ms: int) -> int:
        """End a producer's transaction; returns the end of the log with the marker, which counts once it has committed.

        Raises INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, NOT_ENOUGH_REPLICAS, KAFKA_STORAGE_ERROR.
        """
        self.require_in_sync(self.log.settings.min_insync_replicas)
        self.log.producers.check_marker(marker, transaction_version)
        return self.append(split(encode_marker(marker, now_ms)), now_ms, client=False).last_offset + 1

    def flush(self) -> None:
        """Write what is queued and move the high watermark. Never raises: damage is kept in `offline`.

        Where descriptors are short it stays queued, who waits for it waits on, and it is tried again.
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
            self._hosting.dirty.append(self)
        self._hosting.flush()

    def _written(self) -> None:
        """A thread has written what a flush left to it, or the log has failed."""
        if self.log.offline is not None:
            self.fail(self.log.offline)
        elif self.log.settings.fsync_always:
            self._start_sync()
        else:
            self.advance()
        self._hosting.written(self)
        if not self.leads:
            self._hosting.woken.extend(self.fetches)
        self._hosting.flush()

    @property
    def node_id(self) -> int:
        return self._hosting.node_id

    def _start_sync(self) -> None:
        if self._sync is None and self.log.synced_end < self.log.written_end:
            self._sync = asyncio.get_running_loop().create_task(self._sync_until_even())

    async def _sync_until_even(self) -> None:
        """Group commit: one fdatasync at a time, each for all that was written before it began."""
        try:
            while self.log.synced_end < self.log.written_end and self.offline is None:
                await self.log.sync()
                self.advance()
                self._hosting.flush()
        except Damage as damage:
            self.fail(str(damage))
            self._hosting.flush()
        finally:
            self._sync = None

    @property
    def committable_end(self) -> int:
        """The end of what is as durable as the settings demand."""
        return self.log.synced_end if self.log.settings.fsync_always else self.log.files.written_end

    def advance(self) -> None:
        """Move the high watermark as far as the in-sync replicas allow, and wake who waited for it."""
        storage = self.log
        end = self.committable_end
        if self.followers is not None:
            end = self._agreed_end(self.followers, end)
        if end <= storage.high_watermark:
            return
        storage.advance(end)
        woken = self._hosting.woken
        produces = self._produces
        while produces and produces[0][0] <= end:
            woken.append(produces.popleft()[1])
        if self.fetches:
            woken.extend(self.fetches)
        if self.followers is not None:
            self.followers.note()
        if self.on_advance is not None:
            self.on_advance()

    def _agreed_end(self, followers: Followers, own_end: int) -> int:
        """What all who may be in sync have; who waits for this log alone is woken. -1 where this broker follows."""
        if not self.leads:
            return -1
        woken = self._hosting.woken
        while self._produces_here and self._produces_here[0][0] <= own_end:
            woken.append(self._produces_here.popleft()[1])
        if own_end > followers.woken_at:
            followers.woken_at = own_end
            followers.wake(woken)
        agreed = followers.agreed_end(own_end, self.log.settings.min_insync_replicas, self._hosting.now_ms())
        if self._hosting.is_rack_aware and agreed > self.log.high_watermark:
            followers.wake(woken)
        return agreed

    def wake_fetches(self) -> None:
        """The high watermark of a follower has moved: consumers may wait for it here, too (KIP-392)."""
        if self.fetches:
            self._hosting.woken.extend(self.fetches)
            self._hosting.flush()

    def fetched_by(self, follower: Follower, offset: int, log_start: int, broker_epoch: int) -> None:
        """A follower asks from `offset` on, within the log and of the same history: it may bring on what others wait
        for, and may be in sync by it."""
        followers = self.followers
        assert followers is not None, "who is alone has no followers"
        follower.fetched(offset, log_start, broker_epoch, self.committable_end, self._hosting.now_ms())
        self._propose(followers, followers.with_caught_up(follower, self.log.high_watermark, self.epoch_start))
        self.advance()

    def drop_lagging(self) -> None:
        """Propose to go on without those who have not caught up for replica.lag.time.max.ms."""
        if self.followers is not None and self.leads and self.offline is None:
            now_ms = self._hosting.now_ms()
            self._propose(self.followers, self.followers.without_lagging(self.committable_end, now_ms))
            self.advance()  # one that was waited for may count no more

    def _propose(self, followers: Followers, isr: tuple[int, ...] | None) -> None:
        if isr is not None:
            log.info("%r: in sync %s, to be %s", self, self.isr, isr)
            followers.proposed = isr
            self._hosting.propose(self)

    def when_committed(self, end: int, waiter: Waiter) -> None:
        """Settle the waiter once the high watermark reaches `end`. Raises KafkaError where too many wait."""
        self._wait(self._produces, end, waiter)

    def when_written(self, end: int, waiter: Waiter) -> None:
        """Settle the waiter once this log is as far, and as durable as the settings demand. Raises as above."""
        self._wait(self._produces if self.followers is None else self._produces_here, end, waiter)

    def _wait(self, waiting: deque[tuple[int, Waiter]], end: int, waiter: Waiter) -> None:
        if len(waiting) >= WAITERS_LIMIT:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "too many produces wait for this partition")
        waiting.append((end, waiter))

    @property
    def refusal(self) -> KafkaError | None:
        """Why it is in vain to wait for this partition; None where it is not."""
        if self.offline is not None:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline)
        return None if self.leads else KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def fail(self, why: str) -> None:
        """Go offline; everybody who waits is told."""
        if self.offline is None and self.log.offline is None:  # else the log has said so
            log.error("partition %s-%d is offline: %s", self.topic, self.index, why)
        self.offline = why
        self._wake_all()

    def retire(self) -> None:
        """This replica is no longer hosted here: its waiters look again and are refused."""
        self.offline = "the partition is not hosted here any more"
        self.leader_id = -1
        self._wake_all()

    def _wake_all(self) -> None:
        woken = self._hosting.woken
        for waiting in (self._produces, self._produces_here):
            woken.extend(waiter for _, waiter in waiting)
            waiting.clear()
        woken.extend(self.fetches)
        if self.followers is not None:
            self.followers.wake(woken)
