"""Topics and their partitions (KIP-631)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kpybroker.config.resource_type import ResourceType
from kpybroker.metadata.cluster import forget_settings
from kpybroker.metadata.part import Metadata, Part
from kpybroker.wire.stored import metadata as stored

NO_LEADER = -1
NO_LEADER_CHANGE = -2
NO_RECOVERY_CHANGE = -1


class PartitionImage(NamedTuple):
    """One partition: leader, leader epoch, replicas, in-sync replicas. `leader` is -1 if there is none."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    directories: tuple[bytes, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    @classmethod
    def of(cls, record: stored.PartitionRecord) -> PartitionImage:
        return cls(
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            tuple(record.replicas),
            tuple(record.isr),
            tuple(record.directories),
            tuple(record.removing_replicas),
            tuple(record.adding_replicas),
            record.leader_recovery_state,
            tuple(record.eligible_leader_replicas or ()),
            tuple(record.last_known_elr or ()),
        )

    def changed(self, record: stored.PartitionChangeRecord) -> PartitionImage:
        """The partition after a change. If the record names a leader, the partition gets a new leader epoch, even if
        the leader stays the same."""
        is_named = record.leader != NO_LEADER_CHANGE
        recovery = record.leader_recovery_state
        return PartitionImage(
            record.leader if is_named else self.leader,
            self.leader_epoch + is_named,
            self.partition_epoch + 1,
            self.replicas if record.replicas is None else tuple(record.replicas),
            self.isr if record.isr is None else tuple(record.isr),
            self.directories if record.directories is None else tuple(record.directories),
            self.removing_replicas if record.removing_replicas is None else tuple(record.removing_replicas),
            self.adding_replicas if record.adding_replicas is None else tuple(record.adding_replicas),
            self.leader_recovery_state if recovery == NO_RECOVERY_CHANGE else recovery,
            self.eligible_leader_replicas
            if record.eligible_leader_replicas is None
            else tuple(record.eligible_leader_replicas),
            self.last_known_elr if record.last_known_elr is None else tuple(record.last_known_elr),
        )

    def record(self, topic_id: bytes, index: int) -> stored.PartitionRecord:
        return stored.PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=list(self.replicas),
            isr=list(self.isr),
            removing_replicas=list(self.removing_replicas),
            adding_replicas=list(self.adding_replicas),
            leader=self.leader,
            leader_recovery_state=self.leader_recovery_state,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            directories=list(self.directories),
            eligible_leader_replicas=list(self.eligible_leader_replicas) or None,
            last_known_elr=list(self.last_known_elr) or None,
        )


class TopicImage(NamedTuple):
    """One topic, with its partitions by index."""

    name: str
    id: bytes
    partitions: tuple[PartitionImage, ...]


def _topic(metadata: Metadata, record: stored.TopicRecord) -> None:
    metadata.changing(TOPIC_NAMES)[record.topic_id] = record.name
    metadata.add_topic(record.name, record.topic_id)


def _remove_topic(metadata: Metadata, record: stored.RemoveTopicRecord) -> None:
    name = metadata.changing(TOPIC_NAMES).pop(record.topic_id)
    metadata.remove_topic(name, record.topic_id)
    forget_settings(metadata, (ResourceType.TOPIC, name))


def _partition(metadata: Metadata, record: stored.PartitionRecord) -> None:
    """Add a partition. In a snapshot that other software wrote, the partitions of a topic may be in any order."""
    topic = TOPIC_NAMES.of(metadata)[record.topic_id]
    metadata.put_partition(topic, record.partition_id, PartitionImage.of(record))


def _partition_change(metadata: Metadata, record: stored.PartitionChangeRecord) -> None:
    topic, index = TOPIC_NAMES.of(metadata)[record.topic_id], record.partition_id
    metadata.put_partition(topic, index, metadata.partition(topic, index).changed(record))


def _clear_elr(metadata: Metadata, record: stored.ClearElrRecord) -> None:
    for topic in [record.topic_name] if record.topic_name else list(TOPICS.of(metadata)):
        for index in metadata.partition_indices(topic):
            now = metadata.partition(topic, index)
            metadata.put_partition(topic, index, now._replace(eligible_leader_replicas=(), last_known_elr=()))


def _records(topics: Mapping[str, TopicImage]) -> Iterator[Any]:
    for topic in topics.values():
        yield stored.TopicRecord(name=topic.name, topic_id=topic.id)
        for index, partition in enumerate(topic.partitions):
            yield partition.record(topic.id, index)


TOPIC_NAMES: Part[Mapping[bytes, str]] = Part("names", {}, {}, lambda _: ())
"""Topic id -> name: an index that is updated by the records of topics."""
TOPICS: Part[Mapping[str, Any]] = Part(
    "topics",
    {},
    {
        stored.TopicRecord: _topic,
        stored.RemoveTopicRecord: _remove_topic,
        stored.PartitionRecord: _partition,
        stored.PartitionChangeRecord: _partition_change,
        stored.ClearElrRecord: _clear_elr,
    },
    _records,
)
"""By name: a TopicImage for each topic, or a TopicState in the controller's state."""
