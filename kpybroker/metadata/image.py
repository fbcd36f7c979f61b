"""The immutable view of the cluster's metadata that replaying `__cluster_metadata` gives (KIP-631).

An Image never changes: `apply` makes the next one, which shares all that the records left alone. `changes` lists what
differs from the Image before it, so that followers need not compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kpybroker.errors import Damage
from kpybroker.metadata import quotas, scram
from kpybroker.metadata.parts import BrokerImage, Changes, PartitionImage, TopicImage
from kpybroker.metadata.records import kept_as
from kpybroker.wire.stored import metadata as stored

__all__ = [
    "BROKER_RESOURCE",
    "ELR_FEATURE",
    "GROUP_FEATURE",
    "TOPIC_RESOURCE",
    "TRANSACTION_FEATURE",
    "BrokerImage",
    "Changes",
    "Image",
    "PartitionImage",
    "TopicImage",
]

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
ELR_FEATURE = "eligible.leader.replicas.version"
TRANSACTION_FEATURE = "transaction.version"
GROUP_FEATURE = "group.version"
"""From 1 on, groups of the consumer protocol are served (KIP-848)."""


class Image:
    """The metadata at an offset. All mappings are read-only by agreement; `Image()` is the empty cluster."""

    __slots__ = (
        "_kept",
        "_names",
        "_open",
        "brokers",
        "changes",
        "configs",
        "controllers",
        "epoch",
        "features",
        "next_producer_id",
        "offset",
        "quotas",
        "scram_credentials",
        "topics",
    )

    def __init__(self) -> None:
        self.offset = -1
        """The last record applied."""
        self.epoch = -1
        self.topics: Mapping[str, TopicImage] = {}
        self.brokers: Mapping[int, BrokerImage] = {}
        self.controllers: Mapping[int, stored.RegisterControllerRecord] = {}
        """Node id -> its RegisterControllerRecord."""
        self.configs: Mapping[tuple[int, str], Mapping[str, str]] = {}
        """(resource type, name) -> the settings it has of its own."""
        self.features: Mapping[str, int] = {}
        self.quotas: quotas.Quotas = quotas.NO_QUOTAS
        """By entity, the values that are set."""
        self.scram_credentials: scram.ScramCredentials = scram.NO_CREDENTIALS
        self.next_producer_id = 0
        self.changes = Changes()
        self._names: Mapping[bytes, str] = {}
        self._kept: Mapping[Any, Any] = {}
        """Records of kinds that nothing here decides by (ACLs, tokens, ...): they must survive a snapshot."""
        self._open: tuple[Any, ...] | None = None
        """The records of a metadata transaction that has not ended (KIP-868)."""

    @property
    def in_transaction(self) -> bool:
        """A metadata transaction has begun and not ended: its records are not in this Image yet."""
        return self._open is not None

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        name = self._names.get(topic_id)
        return None if name is None else self.topics[name]

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """The settings a resource has of its own, by name; empty where it has none."""
        return self.configs.get((resource_type, name), {})

    def live_brokers(self) -> frozenset[int]:
        """Those that are not fenced: clients may be sent to them, for a leader may be one on paper only."""
        return frozenset(broker.id for broker in self.brokers.values() if not broker.fenced)

    def apply(self, records: Iterable[Any], offset: int, epoch: int) -> Image:
        """The Image after these records, of which `offset` is the last one's, and `epoch` its leader's.

        Costs what the records touch, and a shallow copy of each mapping they touch. Raises Damage where a record
        cannot follow what was there, or is of a kind that this version does not know.
        """
        draft = _Draft(self)
        for record in records:
            draft.take(record)
        return draft.finish(offset, epoch)

    def records(self) -> Iterator[Any]:
        """Records that make this Image out of the empty one, in the order of a snapshot."""
        assert not self.in_transaction, "half a transaction cannot be a snapshot"
        level = "metadata.version"
        names = [level] if level in self.features else []
        for name in names + [n for n in self.features if n != level]:
            yield stored.FeatureLevelRecord(name=name, feature_level=self.features[name])
        yield from self.controllers.values()
        for broker in self.brokers.values():
            yield broker.record()
        for topic in self.topics.values():
            yield stored.TopicRecord(name=topic.name, topic_id=topic.id)
            for index, partition in enumerate(topic.partitions):
                yield partition.record(topic.id, index)
        for (kind, name), settings in self.configs.items():
            for key, value in settings.items():
                yield stored.ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
        for entity, values in self.quotas.items():
            yield from (quotas.record_of(entity, key, value) for key, value in values.items())
        for user, credentials in self.scram_credentials.items():
            yield from (scram.record_of(user, mechanism, each) for mechanism, each in credentials.items())
        if self.next_producer_id:
            yield stored.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=self.next_producer_id)
        yield from self._kept.values()

    def __eq__(self, other: object) -> bool:
        """Same content; offset and epoch are where it was reached, not what it is."""
        if not isinstance(other, Image):
            return NotImplemented
        compared = (
            "topics",
            "brokers",
            "controllers",
            "configs",
            "features",
            "quotas",
            "scram_credentials",
            "next_producer_id",
            "_kept",
            "_open",
        )
        return all(getattr(self, name) == getattr(other, name) for name in compared)

    def with_changes(self, changes: Changes) -> Image:
        """This Image, said to differ from the one before it in these."""
        self.changes = changes
        return self

    __hash__ = None  # type: ignore[assignment]  # compared by content, never a key


class _Draft:
    """The next Image while it is being made: a mapping is copied when the first record touches it."""

    def __init__(self, before: Image) -> None:
        self._before = before
        self._image = image = Image()
        for name in Image.__slots__:
            if name != "changes":
                setattr(image, name, getattr(before, name))
        self._open: list[Any] | None = None if before._open is None else list(before._open)
        self._copied: set[str] = set()
        self._partitions: dict[bytes, list[PartitionImage | None]] = {}
        self._removed: list[TopicImage] = []
        self._changed: dict[str, None] = {}
        self._configs: dict[tuple[int, str], None] = {}

    def take(self, record: Any) -> None:
        kind = type(record)
        if kind is stored.BeginTransactionRecord:
            self._open = []
        elif kind is stored.AbortTransactionRecord:
            self._open = None
        elif kind is stored.EndTransactionRecord:
            held, self._open = self._open or [], None
            for inner in held:
                self._change(inner)
        elif self._open is not None:
            self._open.append(record)
        else:
            self._change(record)

    def _change(self, record: Any) -> None:
        change = _CHANGES.get(type(record))
        if change is None:
            raise Damage(f"the metadata log has a {type(record).__name__}, which this version does not know")
        try:
            change(self, record)
        except LookupError as missing:
            raise Damage(f"the metadata log has a {record} about what is not there ({missing})") from missing

    def finish(self, offset: int, epoch: int) -> Image:
        image = self._image
        for topic_id, partitions in self._partitions.items():
            whole = tuple(partition for partition in partitions if partition is not None)
            name = image._names[topic_id]
            if len(whole) < len(partitions):
                raise Damage(f"the metadata log lacks partitions of topic {name}")
            self.of("topics")[name] = TopicImage(name, topic_id, whole)
        image._open = None if self._open is None else tuple(self._open)
        image.offset, image.epoch = offset, epoch
        image.changes = Changes(tuple(self._removed), tuple(self._changed), tuple(self._configs))
        return image

    def of(self, name: str) -> Any:
        """A mapping of the Image, as one that may be written to."""
        if name not in self._copied:
            self._copied.add(name)
            setattr(self._image, name, dict(getattr(self._image, name)))
        return getattr(self._image, name)

    def partitions_of(self, topic_id: bytes) -> list[PartitionImage | None]:
        name = self._image._names[topic_id]
        found = self._partitions.get(topic_id)
        if found is None:
            found = self._partitions[topic_id] = list(self._image.topics[name].partitions)
        self._changed[name] = None
        return found

    # ---- one method per kind of record

    def topic(self, record: stored.TopicRecord) -> None:
        self.of("topics")[record.name] = TopicImage(record.name, record.topic_id, ())
        self.of("_names")[record.topic_id] = record.name
        self._partitions[record.topic_id] = []
        self._changed[record.name] = None

    def remove_topic(self, record: stored.RemoveTopicRecord) -> None:
        name = self.of("_names").pop(record.topic_id)
        self.of("topics").pop(name)
        self._partitions.pop(record.topic_id, None)
        self._changed.pop(name, None)
        was = self._before.topics.get(name)
        if was is not None and was.id == record.topic_id:
            self._removed.append(was)
        if (TOPIC_RESOURCE, name) in self._image.configs:
            self.of("configs").pop((TOPIC_RESOURCE, name))
            self._configs[TOPIC_RESOURCE, name] = None

    def partition(self, record: stored.PartitionRecord) -> None:
        """Another writer's snapshot may hold the partitions of a topic in any order."""
        partitions = self.partitions_of(record.topic_id)
        partitions.extend([None] * (record.partition_id + 1 - len(partitions)))
        partitions[record.partition_id] = PartitionImage.of(record)

    def partition_change(self, record: stored.PartitionChangeRecord) -> None:
        partitions = self.partitions_of(record.topic_id)
        was = partitions[record.partition_id]
        if was is None:
            raise KeyError(record.partition_id)
        partitions[record.partition_id] = was.changed(record)

    def clear_elr(self, record: stored.ClearElrRecord) -> None:
        for name in [record.topic_name] if record.topic_name else list(self._image.topics):
            partitions = self.partitions_of(self._image.topics[name].id)
            for index, was in enumerate(partitions):
                if was is not None:
                    partitions[index] = was._replace(eligible_leader_replicas=(), last_known_elr=())

    def register_broker(self, record: stored.RegisterBrokerRecord) -> None:
        self.of("brokers")[record.broker_id] = BrokerImage.of(record)

    def change_broker(self, record: stored.BrokerRegistrationChangeRecord) -> None:
        brokers = self.of("brokers")
        brokers[record.broker_id] = brokers[record.broker_id].changed(record)

    def fence(self, record: stored.FenceBrokerRecord | stored.UnfenceBrokerRecord) -> None:
        brokers = self.of("brokers")
        brokers[record.id] = brokers[record.id]._replace(fenced=isinstance(record, stored.FenceBrokerRecord))

    def unregister_broker(self, record: stored.UnregisterBrokerRecord) -> None:
        self.of("brokers").pop(record.broker_id)

    def register_controller(self, record: stored.RegisterControllerRecord) -> None:
        self.of("controllers")[record.controller_id] = record

    def config(self, record: stored.ConfigRecord) -> None:
        key = (record.resource_type, record.resource_name)
        settings = dict(self._image.configs.get(key, {}))
        if record.value is None:
            settings.pop(record.name, None)
        else:
            settings[record.name] = record.value
        if settings:
            self.of("configs")[key] = settings
        else:
            self.of("configs").pop(key, None)
        self._configs[key] = None

    def feature(self, record: stored.FeatureLevelRecord) -> None:
        if record.feature_level:
            self.of("features")[record.name] = record.feature_level
        else:
            self.of("features").pop(record.name, None)

    def producer_ids(self, record: stored.ProducerIdsRecord) -> None:
        self._image.next_producer_id = record.next_producer_id

    def quota(self, record: stored.ClientQuotaRecord) -> None:
        quotas.changed(self.of("quotas"), record)

    def scram_credential(
        self, record: stored.UserScramCredentialRecord | stored.RemoveUserScramCredentialRecord
    ) -> None:
        scram.changed(self.of("scram_credentials"), record)

    def nothing(self, record: Any) -> None:
        """NoOpRecord and what is left of migrations from ZooKeeper: there is nothing to remember."""

    def keep(self, record: Any) -> None:
        key, is_gone = kept_as(record)
        if is_gone:
            self.of("_kept").pop(key, None)
        else:
            self.of("_kept")[key] = record


_CHANGES: Mapping[type[Any], Callable[[_Draft, Any], None]] = {
    stored.TopicRecord: _Draft.topic,
    stored.RemoveTopicRecord: _Draft.remove_topic,
    stored.PartitionRecord: _Draft.partition,
    stored.PartitionChangeRecord: _Draft.partition_change,
    stored.ClearElrRecord: _Draft.clear_elr,
    stored.RegisterBrokerRecord: _Draft.register_broker,
    stored.BrokerRegistrationChangeRecord: _Draft.change_broker,
    stored.FenceBrokerRecord: _Draft.fence,
    stored.UnfenceBrokerRecord: _Draft.fence,
    stored.UnregisterBrokerRecord: _Draft.unregister_broker,
    stored.RegisterControllerRecord: _Draft.register_controller,
    stored.ConfigRecord: _Draft.config,
    stored.FeatureLevelRecord: _Draft.feature,
    stored.ProducerIdsRecord: _Draft.producer_ids,
    stored.NoOpRecord: _Draft.nothing,
    stored.ZkMigrationStateRecord: _Draft.nothing,
    stored.ClientQuotaRecord: _Draft.quota,
    stored.AccessControlEntryRecord: _Draft.keep,
    stored.RemoveAccessControlEntryRecord: _Draft.keep,
    stored.UserScramCredentialRecord: _Draft.scram_credential,
    stored.RemoveUserScramCredentialRecord: _Draft.scram_credential,
    stored.DelegationTokenRecord: _Draft.keep,
    stored.RemoveDelegationTokenRecord: _Draft.keep,
}
