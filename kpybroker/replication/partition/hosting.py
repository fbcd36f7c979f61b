"""Keeps the partitions that this broker hosts, by topic name and by topic id."""

from __future__ import annotations

from collections.abc import Iterator

from kpybroker.config import BrokerConfig
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.replication.partition.flush_queue import FlushQueue
from kpybroker.replication.partition.partition import Partition
from kpybroker.replication.partition.partition_events import PartitionEvents
from kpybroker.replication.partition.replica_rules import ReplicaRules
from kpybroker.replication.partition.throttle import Throttle
from kpybroker.storage.log.log import Log


class Hosting:
    """The partitions of this broker, the rules for its replicas, and the replication throttles (KIP-73)."""

    def __init__(self, rules: ReplicaRules, queue: FlushQueue, events: PartitionEvents[Partition]) -> None:
        self.node_id = rules.node_id
        self.rules = rules
        self.events = events
        self._queue = queue
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._by_id: dict[tuple[bytes, int], Partition] = {}
        self.offline: dict[tuple[str, int], str] = {}
        """The reasons why partitions of this broker could not be opened."""
        node_id, now_ms = rules.node_id, rules.now_ms
        self.leading_throttle = Throttle(node_id, lambda it: it.leader_replication_throttled_replicas, now_ms)
        self.following_throttle = Throttle(node_id, lambda it: it.follower_replication_throttled_replicas, now_ms)
        self.moving_throttle = Throttle(node_id, lambda it: frozenset(), now_ms)

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))

    def lost(self) -> Iterator[str]:
        """One line for each partition of this broker that is offline, with the reason."""
        yield from (f"{topic}-{index} is offline: {why}" for (topic, index), why in self.offline.items())
        for partition in self._partitions.values():
            why = partition.offline or partition.log.offline
            if why is not None:
                yield f"{partition.topic}-{partition.index} is offline: {why}"

    def limit_replication(self, config: BrokerConfig) -> None:
        """Apply the broker's current replication rates (KIP-73)."""
        self.leading_throttle.limit(config.leader_replication_throttled_rate)
        self.following_throttle.limit(config.follower_replication_throttled_rate)
        self.moving_throttle.limit(config.replica_alter_log_dirs_io_max_bytes_per_second)

    def host(self, topic: str, topic_id: bytes, index: int, storage: Log) -> Partition:
        """Add a partition with an open log. This broker neither leads nor follows it yet."""
        self.offline.pop((topic, index), None)
        partition = Partition(self.rules, self._queue, self.events, topic, topic_id, index, storage)
        self._partitions[topic, index] = self._by_id[topic_id, index] = partition
        return partition

    def find(self, topic: str, index: int) -> Partition | None:
        """The partition, whether this broker leads it or not; None if it does not have the partition or could not open
        it."""
        return self._partitions.get((topic, index))

    def leads_id(self, topic_id: bytes, index: int) -> Partition | None:
        """The partition, if this broker leads it and it is online; else None, for which `leads` raises the reason."""
        partition = self._by_id.get((topic_id, index))
        if partition is None or partition.leader_id != self.node_id or partition.offline is not None:
            return None
        return partition

    def leads(self, topic: str, index: int) -> Partition:
        """The partition that this broker leads.

        Raises UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, and INVALID_TOPIC_EXCEPTION for
        a view and for retired partitions, which clients do not retry.
        """
        partition = self._partitions.get((topic, index))
        if partition is None:
            why = self.offline.get((topic, index))
            if why is not None:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, why)
            if self.rules.exists(topic, index):
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            shown = self.rules.read_only(topic)
            if shown is not None:
                raise shown.refusal()
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if partition.leader_id != self.node_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if partition.offline is not None:
            partition.require_online()
        return partition

    def replica(self, topic: str, index: int) -> Partition:
        """The partition, whether this broker leads it or not (KIP-392). Raises the same errors as `leads`."""
        partition = self._partitions.get((topic, index))
        if partition is None or partition.offline is not None:
            return self.leads(topic, index)
        return partition

    def retire(self, topic: str, index: int) -> Partition | None:
        """Stop hosting a partition. The caller deletes its log."""
        self.offline.pop((topic, index), None)
        partition = self._partitions.pop((topic, index), None)
        if partition is not None:
            self._by_id.pop((partition.topic_id, index), None)
            partition.retire()
        return partition
