"""The partitions this broker hosts, and the one write per partition that ends every read event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from kpybroker.config import BrokerConfig
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.replication.partition.partition import Partition, Waiter
from kpybroker.replication.partition.throttle import Throttle
from kpybroker.storage.log.log import Log

LAG_MAX_MS = 30_000


def _loop_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


class Hosting:
    """Partitions by name and by topic id; who was appended to and who is to be woken in this event."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.dirty: list[Partition] = []
        self.woken: list[Waiter] = []
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._by_id: dict[tuple[bytes, int], Partition] = {}
        self.offline: dict[tuple[str, int], str] = {}
        """Partitions that belong here and could not be opened, and why."""
        self.isr_shrinks = self.isr_expands = 0
        """In-sync sets of partitions led here that have become smaller, or larger."""
        self.flushing = False
        """A flush is under way: what is appended now is written before it ends."""
        self.lag_max_ms = LAG_MAX_MS
        """replica.lag.time.max.ms: how long a follower may not have caught up and still be in sync."""
        self.now_ms: Callable[[], int] = _loop_ms
        self.leading_throttle = Throttle(node_id, lambda it: it.leader_replication_throttled_replicas, self.now)
        self.following_throttle = Throttle(node_id, lambda it: it.follower_replication_throttled_replicas, self.now)
        self.moving_throttle = Throttle(node_id, lambda it: frozenset(), self.now)
        self.may_join: Callable[[int, int], bool] = lambda node_id, broker_epoch: True
        """Whether a node can be in sync, as far as the metadata says, that fetched with a broker epoch (KIP-841)."""
        self.epoch_of: Callable[[int], int] = lambda node_id: -1
        """The epoch of a broker's registration, as far as is known here; -1 for none."""
        self.is_rack_aware = False
        """Consumers read from followers, which want to know of a high watermark as soon as it moves."""
        self.propose: Callable[[Partition], None] = lambda partition: None
        """Ask the controller for what the partition has proposed."""
        self._on_written: Callable[[Partition], None] = lambda partition: None
        self.exists: Callable[[str, int], bool] = lambda topic, index: False
        """Whether there is such a partition anywhere in the cluster."""

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))

    def tell(self, on_written: Callable[[Partition], None]) -> None:
        """Call back when a thread has written what was appended to a partition: it may be fetched again."""
        self._on_written = on_written

    def written(self, partition: Partition) -> None:
        """A thread has written what was appended to it."""
        self._on_written(partition)

    def now(self) -> int:
        return self.now_ms()

    def lost(self) -> Iterator[str]:
        """Why partitions that belong here are not served: which log has failed, and how."""
        yield from (f"{topic}-{index} is offline: {why}" for (topic, index), why in self.offline.items())
        for partition in self._partitions.values():
            why = partition.offline or partition.log.offline
            if why is not None:
                yield f"{partition.topic}-{partition.index} is offline: {why}"

    def limit_replication(self, config: BrokerConfig) -> None:
        """The broker's rates, as they are now (KIP-73)."""
        self.leading_throttle.limit(config.leader_replication_throttled_rate)
        self.following_throttle.limit(config.follower_replication_throttled_rate)
        self.moving_throttle.limit(config.replica_alter_log_dirs_io_max_bytes_per_second)

    def host(self, topic: str, topic_id: bytes, index: int, storage: Log) -> Partition:
        self.offline.pop((topic, index), None)
        partition = Partition(self, topic, topic_id, index, storage)
        self._partitions[topic, index] = self._by_id[topic_id, index] = partition
        return partition

    def find(self, topic: str, index: int) -> Partition | None:
        return self._partitions.get((topic, index))

    def leads_id(self, topic_id: bytes, index: int) -> Partition | None:
        """The partition, where this broker leads it and serves it; else None, and `leads` says why."""
        partition = self._by_id.get((topic_id, index))
        if partition is None or partition.leader_id != self.node_id or partition.offline is not None:
            return None
        return partition

    def leads(self, topic: str, index: int) -> Partition:
        """The partition, where this broker leads it.

        Raises UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR.
        """
        partition = self._partitions.get((topic, index))
        if partition is None:
            why = self.offline.get((topic, index))
            if why is not None:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, why)
            if self.exists(topic, index):
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if partition.leader_id != self.node_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if partition.offline is not None:
            partition.require_online()
        return partition

    def replica(self, topic: str, index: int) -> Partition:
        """The partition, where this broker has it, leading or not (KIP-392). Raises as `leads` does."""
        partition = self._partitions.get((topic, index))
        if partition is None or partition.offline is not None:
            return self.leads(topic, index)
        return partition

    def retire(self, topic: str, index: int) -> Partition | None:
        """Stop hosting; the caller deletes the log."""
        self.offline.pop((topic, index), None)
        partition = self._partitions.pop((topic, index), None)
        if partition is not None:
            self._by_id.pop((partition.topic_id, index), None)
            partition.retire()
        return partition

    def flush(self) -> None:
        """Write what was appended, then settle whoever was woken: a read event ends, a sync finished.

        A bug in one of them is not the others': they are there for the next flush.
        """
        if self.flushing or not (self.dirty or self.woken):
            return
        self.flushing = True
        dirty: Iterator[Partition] = iter(())
        woken: Iterator[Waiter] = iter(())
        try:
            while self.dirty or self.woken:
                dirty, self.dirty = iter(self.dirty), []
                for partition in dirty:
                    partition.flush()
                woken, self.woken = iter(dict.fromkeys(self.woken)), []
                for waiter in woken:
                    waiter.settle()
        finally:
            self.dirty.extend(dirty)
            self.woken.extend(woken)
            self.flushing = False
