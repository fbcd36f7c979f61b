"""The state from which the controller decides: the same parts of the metadata as in an Image, and uncommitted changes.

The state is changed in place, so that the cost of a record does not depend on the size of the state
(docs/decisions/0019).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kpybroker.metadata.parts import Replaying
from kpybroker.metadata.retirements import Retirement, topic_of_retired
from kpybroker.metadata.topics import TOPICS, PartitionImage
from kpybroker.topics import TopicPartition


@dataclass(slots=True)
class TopicState:
    """One topic. Partitions are kept by index, so that the cost of a change does not depend on their number."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionImage] = field(default_factory=dict)


class ControllerState(Replaying):
    """All parts of the metadata, with counts and indexes.

    folds_case: whether topic names that differ only in case collide, because they would share a directory in the file
    system of log.dirs. Two states are equal if they were built from the same records.
    """

    __slots__ = ("folds_case", "normal_names", "partition_count")

    topics: Mapping[str, TopicState]

    def __init__(self, *, folds_case: bool = False) -> None:
        super().__init__()
        self.folds_case = folds_case
        self.normal_names: dict[str, str] = {}
        """Normal name -> a topic with that normal name. If names are case-sensitive, it contains only names with `.` or
        `_`."""
        self.partition_count = 0

    def normal_name(self, topic: str) -> str:
        """Topics with the same normal name collide: metric names are derived from topic names, with `_` for `.`."""
        normal = topic.replace(".", "_")
        return normal.lower() if self.folds_case else normal

    def topic(self, name: str) -> TopicState | None:
        """The topic; None if there is none. Raises INVALID_TOPIC_EXCEPTION for a view or for retired partitions, which
        are no topics of their own."""
        found = self.topics.get(name)
        if found is None:
            shown = self.views.get(name) or self.retired(name)
            if shown is not None:
                raise shown.refusal()
        return found

    def retirement(self, topic: str) -> Retirement | None:
        """The retired partitions of a topic; None if it has none."""
        found, known = self.retirements.get(topic), self.topics.get(topic)
        return found if found and known is not None and found.fits(known.topic_id, len(known.partitions)) else None

    def retired(self, name: str) -> Retirement | None:
        """The retired partitions with this name, even if they are empty and not shown; None if there are none."""
        topic = topic_of_retired(name)
        return None if topic is None else self.retirement(topic)

    def stored_as(self, topic: str, index: int) -> TopicPartition:
        """The partition of a topic that a partition is as clients name it. It is another one only for retired
        partitions."""
        retirement = None if topic in self.topics or topic in self.views else self.retired(topic)
        return (topic, index) if retirement is None else retirement.stored_as(index)

    def active(self, node_id: int) -> bool:
        """Whether a broker is registered, not fenced and not shutting down: it may lead, and may be assigned
        replicas."""
        broker = self.brokers.get(node_id)
        return broker is not None and not broker.fenced and not broker.in_controlled_shutdown

    def add_topic(self, name: str, topic_id: bytes) -> None:
        topics = self.changing(TOPICS)
        if name in topics:
            self.partition_count -= len(topics[name].partitions)
        topics[name] = TopicState(name, topic_id)
        if self.folds_case or "." in name or "_" in name:
            self.normal_names.setdefault(self.normal_name(name), name)

    def remove_topic(self, name: str, topic_id: bytes) -> None:
        self.partition_count -= len(self.changing(TOPICS).pop(name).partitions)
        normal = self.normal_name(name)
        if self.normal_names.get(normal) == name:
            del self.normal_names[normal]

    def partition_indices(self, topic: str) -> list[int]:
        return list(self.topics[topic].partitions)

    def partition(self, topic: str, index: int) -> PartitionImage:
        return self.topics[topic].partitions[index]

    def put_partition(self, topic: str, index: int, partition: PartitionImage) -> None:
        partitions = self.topics[topic].partitions
        self.partition_count += index not in partitions
        partitions[index] = partition

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ControllerState)
            and (self.normal_names, self.partition_count) == (other.normal_names, other.partition_count)
            and super().__eq__(other)
        )

    __hash__ = None  # type: ignore[assignment]  # compared by content, never a key
