"""The immutable view of the cluster's metadata, built by replaying `__cluster_metadata` (KIP-631).

An Image never changes: `apply` builds the next one, which shares all mappings that the records did not change.
`changes` lists the differences from the previous Image, so that its users need not compare the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kpybroker.errors import Damage
from kpybroker.metadata.brokers import BrokerImage
from kpybroker.metadata.own_settings import derived_id
from kpybroker.metadata.parts import PARTS, MetadataContent, Replaying
from kpybroker.metadata.retirements import Retirement, topic_of_retired
from kpybroker.metadata.topics import TOPICS, PartitionImage, TopicImage
from kpybroker.metadata.views import TopicView
from kpybroker.topics import TopicPartition

__all__ = [
    "ELR_FEATURE",
    "GROUP_FEATURE",
    "SHARE_FEATURE",
    "STREAMS_FEATURE",
    "TRANSACTION_FEATURE",
    "BrokerImage",
    "Changes",
    "Image",
    "PartitionImage",
    "TopicImage",
]

ELR_FEATURE = "eligible.leader.replicas.version"
TRANSACTION_FEATURE = "transaction.version"
GROUP_FEATURE = "group.version"
"""From level 1 on, groups of the consumer protocol are served (KIP-848)."""
SHARE_FEATURE = "share.version"
"""From level 1 on, share groups are served (KIP-932)."""
STREAMS_FEATURE = "streams.version"
"""From level 1 on, streams groups are served (KIP-1071)."""


class Changes(NamedTuple):
    """The differences from the previous Image. `topics` has the names of new and changed topics. A topic that was
    deleted and recreated is in `removed` as well."""

    removed: tuple[TopicImage, ...] = ()
    topics: tuple[str, ...] = ()
    configs: tuple[tuple[int, str], ...] = ()


class OffsetsOf(NamedTuple):
    """Where the committed offsets of a topic's partitions are: under this topic. `last` is the index there of partition
    0, if the topic has the retired partitions of another one; the index of each following partition is one lower."""

    topic: str
    topic_id: bytes
    partitions: int
    last: int | None = None

    def stored(self, index: int) -> int | None:
        """The index there of a partition; None if there is no such partition. `shown` is the inverse."""
        if not 0 <= index < self.partitions:
            return None
        return self.shown(index)

    def shown(self, index: int) -> int:
        """The index of the partition whose offset is stored for this index."""
        return index if self.last is None else self.last - index


class Image(MetadataContent):
    """The metadata at an offset. All mappings are read-only by convention; `Image()` is the empty cluster."""

    __slots__ = ("_readable", "_resized", "_shown_names", "_shown_views", "changes", "epoch", "offset")

    topics: Mapping[str, TopicImage]

    def __init__(self, content: MetadataContent | None = None) -> None:
        super().__init__(content)
        self.freeze_transaction()
        self.offset = -1
        """The offset of the last applied record."""
        self.epoch = -1
        self.changes = Changes()
        self._shown_views: Mapping[str, TopicImage] | None = None
        self._resized: Mapping[str, TopicImage] | None = None
        self._shown_names: Mapping[bytes, str] | None = None
        self._readable: Mapping[str, TopicImage] | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether a metadata transaction is open: its records are not in this Image yet."""
        return self.open_transaction is not None

    def topic(self, name: str) -> TopicImage | None:
        """The topic of this name, as clients see it: without its retired partitions. Views and retired partitions are
        topics with an id of their own."""
        if self.retirements and (resized := self.resized.get(name)) is not None:
            return resized
        found = self.topics.get(name)
        return found if found is not None or not self.views else self.shown_views.get(name)

    def owned_topic(self, name: str) -> TopicImage | None:
        """Like `topic`, but None for views and retired partitions, which have no partitions of their own."""
        return self.topic(name) if name in self.topics else None

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        """The topic with this id, like `topic`."""
        name = self.names.get(topic_id)
        if name is None and (self.views or self.retirements):
            if self._shown_names is None:
                shown = (*self.shown_views.values(), *self.resized.values())
                self._shown_names = {topic.id: topic.name for topic in shown}
            name = self._shown_names.get(topic_id)
        return None if name is None else self.topic(name)

    def view(self, name: str) -> TopicView | None:
        """The view of this name; None if there is none, or if it shows nothing because its source does not exist."""
        return self.views[name] if self.views and name in self.shown_views else None

    @property
    def shown_views(self) -> Mapping[str, TopicImage]:
        """All views as topics, by name, except those whose source does not exist and those that a topic hides."""
        if self._shown_views is None:
            topics = self.topics
            self._shown_views = {
                name: TopicImage(name, derived_id(source.id, name), source.partitions)
                for name, view in self.views.items()
                if name not in topics and (source := topics.get(view.source)) is not None
            }
        return self._shown_views

    def retirement(self, topic: str) -> Retirement | None:
        """The retired partitions of a topic; None if it has none."""
        found, known = self.retirements.get(topic), self.topics.get(topic)
        return found if found and known is not None and found.fits(known.id, len(known.partitions)) else None

    def retired(self, name: str) -> Retirement | None:
        """The retired partitions that are shown as the topic of this name; None if it is another topic, or none."""
        topic = topic_of_retired(name) if self.retirements else None
        return None if topic is None or name in self.topics or name not in self.resized else self.retirement(topic)

    @property
    def resized(self) -> Mapping[str, TopicImage]:
        """By name: the topics that have retired partitions, without these, and the retired partitions. Their id also
        depends on the topic's number of partitions, from which they are counted. A topic or view of the same name hides
        them."""
        if self._resized is None:
            self._resized = {}
            for retirement in filter(None, map(self.retirement, self.retirements)):
                topic, name = self.topics[retirement.topic], retirement.name
                used, retired = topic.partitions[: retirement.in_use], topic.partitions[retirement.in_use :]
                self._resized[topic.name] = topic._replace(partitions=used)
                if name not in self.topics and name not in self.views:
                    self._resized[name] = TopicImage(
                        name, derived_id(topic.id, f"{name} {retirement.total}"), retired[::-1]
                    )
        return self._resized

    @property
    def retired_topics(self) -> Mapping[str, str]:
        """The topic of each name under which retired partitions are shown."""
        if not self.retirements:
            return {}
        return {name: retired.topic for name in self.resized if (retired := self.retired(name)) is not None}

    def stored_as(self, topic: str, index: int) -> TopicPartition:
        """The partition that has the records, and the committed offsets, of a partition as clients name it. It is
        another one only for retired partitions."""
        retirement = self.retired(topic)
        return (topic, index) if retirement is None else retirement.stored_as(index)

    def offsets_of(self, topic: TopicImage) -> OffsetsOf:
        """Where the committed offsets of a topic are, as clients see it."""
        if not self.retirements:
            return OffsetsOf(topic.name, topic.id, len(topic.partitions))
        retirement = self.retired(topic.name)
        if retirement is not None:
            return OffsetsOf(retirement.topic, retirement.topic_id, len(topic.partitions), retirement.total - 1)
        # members that have not refreshed their metadata yet commit for retired partitions under the name of the topic
        return OffsetsOf(topic.name, topic.id, len(self.topics.get(topic.name, topic).partitions))

    def read_only(self, name: str) -> TopicView | Retirement | None:
        """The view or the retired partitions that are shown as the topic of this name."""
        return self.view(name) or self.retired(name)

    @property
    def readable(self) -> Mapping[str, TopicImage]:
        """All topics as clients see them, by name, with views and with the retired partitions that have records. Those
        that are empty are found by `topic` alone."""
        if not (self.views or self.retirements):
            return self.topics
        if self._readable is None:
            empty = {each.name for each in self.retirements.values() if not each.is_shown} - self.topics.keys()
            resized = {name: topic for name, topic in self.resized.items() if name not in empty}
            self._readable = {**self.topics, **self.shown_views, **resized}
        return self._readable

    def live_brokers(self) -> frozenset[int]:
        """The brokers that are not fenced. A fenced leader does not serve clients."""
        return frozenset(broker.id for broker in self.brokers.values() if not broker.fenced)

    def apply(self, records: Iterable[Any], offset: int, epoch: int) -> Image:
        """The Image after these records; `offset` is that of the last record, and `epoch` that of its leader.

        The cost depends only on the records, and on the mappings that they change, of which it makes shallow copies.
        Raises Damage if a record does not fit the state, or if this version of kpybroker does not support its type.
        """
        delta = _Delta(self)
        for record in records:
            delta.replay(record)
        return delta.finish(offset, epoch)

    def records(self) -> Iterator[Any]:
        """The records that build this Image from the empty one, in the order of a snapshot."""
        assert not self.in_transaction, "a snapshot cannot contain half a transaction"
        for part in PARTS:
            yield from part.records(part.of(self))

    def with_changes(self, changes: Changes) -> Image:
        """A copy of this Image with the given `changes`."""
        self.changes = changes
        return self


class _Delta(Replaying):
    """The next Image while it is being built from the previous one (Kafka's MetadataDelta)."""

    topics: Mapping[str, TopicImage]
    """Topics without the changes of their partitions."""

    def __init__(self, before: Image) -> None:
        super().__init__(before)
        self._before = before
        self._removed: list[TopicImage] = []
        self._partitions: dict[str, dict[int, PartitionImage]] = {}
        """New and changed partitions, by topic and index."""
        self._configs: dict[tuple[int, str], None] = {}

    def finish(self, offset: int, epoch: int) -> Image:
        """Build the Image. Raises Damage if a topic lacks partitions."""
        for name, changed in self._partitions.items():
            self.changing(TOPICS)[name] = _with(self.topics[name], changed)
        image = Image(self)
        image.offset, image.epoch = offset, epoch
        image.changes = Changes(tuple(self._removed), tuple(self._partitions), tuple(self._configs))
        return image

    def add_topic(self, name: str, topic_id: bytes) -> None:
        self.changing(TOPICS)[name] = TopicImage(name, topic_id, ())
        self._partitions[name] = {}

    def remove_topic(self, name: str, topic_id: bytes) -> None:
        del self.changing(TOPICS)[name]
        self._partitions.pop(name, None)
        was = self._before.topics.get(name)
        if was is not None and was.id == topic_id:
            self._removed.append(was)

    def partition_indices(self, topic: str) -> list[int]:
        return sorted({*range(len(self.topics[topic].partitions)), *self._partitions.get(topic, ())})

    def partition(self, topic: str, index: int) -> PartitionImage:
        changed = self._partitions.get(topic, {}).get(index)
        if changed is not None:
            return changed
        partitions = self.topics[topic].partitions
        if not 0 <= index < len(partitions):
            raise KeyError(index)
        return partitions[index]

    def put_partition(self, topic: str, index: int, partition: PartitionImage) -> None:
        if topic not in self.topics:
            raise KeyError(topic)
        self._partitions.setdefault(topic, {})[index] = partition

    def settings_changed(self, resource: tuple[int, str]) -> None:
        self._configs[resource] = None


def _with(topic: TopicImage, changed: Mapping[int, PartitionImage]) -> TopicImage:
    partitions = list(topic.partitions)
    for index in sorted(changed):
        if not 0 <= index <= len(partitions):
            raise Damage(f"the metadata log lacks partitions of topic {topic.name}")
        partitions[index : index + 1] = (changed[index],)
    return topic._replace(partitions=tuple(partitions))
