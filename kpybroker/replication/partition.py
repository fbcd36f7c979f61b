"""A Log with leadership: epoch, in-sync replicas, waiters (DESIGN: concept 6).

A broker of one is a leader whose in-sync set is itself: the high watermark is the end of what is written, or of what is
synced where `kpybroker.fsync` is `always`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.storage.log import Appended, Log

if TYPE_CHECKING:
    from kpybroker.metadata.image import PartitionImage
    from kpybroker.replication.hosting import Hosting
    from kpybroker.wire.batch import Batch
    from kpybroker.wire.forms import FetchForm

log = logging.getLogger(__name__)

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
WAITERS_LIMIT = 100_000
"""Produces waiting for the high watermark, per partition."""


class Waiter(Protocol):
    """Somebody who is called once after the flush that may have brought what it waits for."""

    def settle(self) -> None: ...


class Partition:
    """One replica that this broker hosts."""

    __slots__ = (
        "_dirty",
        "_hosting",
        "_produces",
        "_sync",
        "acknowledgement",
        "fetch_forms",
        "fetches",
        "index",
        "is_internal",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "offline",
        "on_advance",
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
        self.isr: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.offline: str | None = None
        """Why this partition serves nothing, once damage or deletion took it away."""
        self.fetches: dict[Waiter, None] = {}
        """Parked fetches, in order of arrival."""
        self.on_advance: Callable[[], None] | None = None
        """Called when the high watermark moved: the coordinator whose state this log is."""
        self._produces: deque[tuple[int, Waiter]] = deque()
        self._dirty = False
        self.acknowledgement: tuple[int, int, Any] = (-1, -1, None)
        """Version, log start and form of the response to a Produce; see `handlers.produce`."""
        self.fetch_forms: dict[int, FetchForm | None] = {}
        """Forms of the response to a Fetch by version, and by isolation; see `handlers.fetch`."""
        self._sync: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<{self.topic}-{self.index} epoch {self.leader_epoch} end {self.log.end}>"

    # ---- leadership

    def take_lead(self) -> None:
        """Begin the epoch: as the only in-sync replica, everything that is here has committed."""
        self.log.begin_epoch(self.leader_epoch)
        if self.log.settings.fsync_always:
            self._start_sync()
        self.advance()

    def become(self, image: PartitionImage) -> None:
        """Take over what the metadata says: leader, epoch, replicas, in-sync set."""
        self.leader_id = image.leader
        self.leader_epoch = image.leader_epoch
        self.isr = tuple(image.isr)
        self.replicas = tuple(image.replicas)

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
        """Before an append with acks=all. Raises NOT_ENOUGH_REPLICAS."""
        if len(self.isr) < min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"{len(self.isr)} in sync, min.insync.replicas is {min_isr}"
            )

    # ---- append

    def append(self, batches: list[Batch], now_ms: int, *, client: bool = True) -> Appended:
        """Validate and queue; what is queued is written by the flush that ends the read event. Raises KafkaError."""
        if self.offline is not None:
            self.require_online()
        try:
            appended = self.log.append(batches, self.leader_epoch, now_ms, client=client)
        except Damage as damage:
            self.fail(str(damage))
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage)) from damage
        if not self._dirty:
            self._dirty = True
            self._hosting.dirty.append(self)
        return appended

    def flush(self) -> None:
        """Write what is queued and move the high watermark. Never raises: damage is kept in `offline`."""
        self._dirty = False
        try:
            self.log.flush()
        except Damage as damage:
            self.fail(str(damage))
            return
        if self.log.settings.fsync_always:
            self._start_sync()
        else:
            self.advance()

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
        return self.log.synced_end if self.log.settings.fsync_always else self.log.written_end

    def advance(self) -> None:
        """Move the high watermark as far as the in-sync replicas allow, and wake who waited for it."""
        storage = self.log
        end = self.committable_end
        if end <= storage.high_watermark:
            return
        storage.high_watermark = end
        storage.last_stable = end
        woken = self._hosting.woken
        produces = self._produces
        while produces and produces[0][0] <= end:
            woken.append(produces.popleft()[1])
        if self.fetches:
            woken.extend(self.fetches)
        if self.on_advance is not None:
            self.on_advance()

    def when_committed(self, end: int, waiter: Waiter) -> None:
        """Settle the waiter once the high watermark reaches `end`."""
        if len(self._produces) >= WAITERS_LIMIT:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "too many produces wait for this partition")
        self._produces.append((end, waiter))

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
        woken.extend(waiter for _, waiter in self._produces)
        self._produces.clear()
        woken.extend(self.fetches)
