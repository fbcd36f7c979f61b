"""The laws of the Image: batches do not matter, a snapshot is the Image, what was published stays as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import Damage
from kpybroker.metadata.image import TOPIC_RESOURCE, Image
from kpybroker.wire.stored import metadata as stored

NAMES = ["a", "b", "c", "__internal"]


def uuid_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


class History:
    """Draws records as a controller could write them, one after another."""

    def __init__(self, draw: st.DataObject) -> None:
        self._data = draw
        self.records: list[Any] = []
        self.topics: dict[str, tuple[bytes, int]] = {}
        self.brokers: set[int] = set()

    def pick(self, options: Sequence[Any]) -> Any:
        return self._data.draw(st.sampled_from(options))

    def some(self, low: int, high: int) -> int:
        return self._data.draw(st.integers(low, high))

    def brokers_drawn(self) -> list[int]:
        return self._data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True))

    def write(self) -> None:
        kinds = [self.create, self.config, self.broker, self.small, self.kept]
        if self.topics:
            kinds += [self.grow, self.change, self.change, self.remove, self.clear_elr]
        if self.brokers:
            kinds += [self.fence, self.change_broker, self.unregister]
        self.pick(kinds)()

    def partition(self, topic_id: bytes, index: int) -> stored.PartitionRecord:
        replicas = self.brokers_drawn()
        return stored.PartitionRecord(
            topic_id=topic_id,
            partition_id=index,
            replicas=replicas,
            isr=replicas[: self.some(1, 3)],
            leader=replicas[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=[uuid_of(1000 + broker) for broker in replicas],
            eligible_leader_replicas=self.pick([None, [1], [2, 3]]),
        )

    def create(self) -> None:
        name = self.pick(NAMES)
        if name in self.topics:
            return
        topic_id = uuid_of(len(self.records) + 1)
        count = self.some(1, 3)
        self.topics[name] = (topic_id, count)
        self.records.append(stored.TopicRecord(name=name, topic_id=topic_id))
        self.records += [self.partition(topic_id, index) for index in range(count)]

    def grow(self) -> None:
        name = self.pick(sorted(self.topics))
        topic_id, count = self.topics[name]
        self.topics[name] = (topic_id, count + 1)
        self.records.append(self.partition(topic_id, count))

    def change(self) -> None:
        topic_id, count = self.topics[self.pick(sorted(self.topics))]
        change = stored.PartitionChangeRecord(topic_id=topic_id, partition_id=self.some(0, count - 1))
        if self.some(0, 1):
            change.leader = self.some(-1, 5)
        if self.some(0, 1):
            change.isr = self.brokers_drawn()
        if self.some(0, 1):
            change.adding_replicas = self.brokers_drawn()
        change.leader_recovery_state = self.some(-1, 1)
        self.records.append(change)

    def remove(self) -> None:
        topic_id, _ = self.topics.pop(self.pick(sorted(self.topics)))
        self.records.append(stored.RemoveTopicRecord(topic_id=topic_id))

    def clear_elr(self) -> None:
        self.records.append(stored.ClearElrRecord(topic_name=self.pick(["", *sorted(self.topics)])))

    def config(self) -> None:
        kind, name = self.pick([(2, name) for name in NAMES if name in self.topics] + [(4, ""), (4, "1")])
        value = self.pick([None, "1", "2"])
        self.records.append(
            stored.ConfigRecord(resource_type=kind, resource_name=name, name=self.pick(["x", "y"]), value=value)
        )

    def broker(self) -> None:
        number = self.some(1, 3)
        self.brokers.add(number)
        self.records.append(
            stored.RegisterBrokerRecord(
                broker_id=number,
                incarnation_id=uuid_of(self.some(1, 9)),
                broker_epoch=len(self.records),
                end_points=[stored.BrokerEndpoint(name="PLAINTEXT", host="h", port=9092, security_protocol=0)],
                features=[stored.BrokerFeature(name="metadata.version", max_supported_version=30)],
                rack=self.pick([None, "r"]),
                fenced=bool(self.some(0, 1)),
                log_dirs=[uuid_of(77)],
            )
        )

    def fence(self) -> None:
        kind = self.pick([stored.FenceBrokerRecord, stored.UnfenceBrokerRecord])
        self.records.append(kind(id=self.pick(sorted(self.brokers)), epoch=0))

    def change_broker(self) -> None:
        self.records.append(
            stored.BrokerRegistrationChangeRecord(
                broker_id=self.pick(sorted(self.brokers)),
                fenced=self.some(-1, 1),
                in_controlled_shutdown=self.some(0, 1),
                cordoned_log_dirs=self.pick([None, [], [uuid_of(77)]]),
            )
        )

    def unregister(self) -> None:
        number = self.pick(sorted(self.brokers))
        self.brokers.remove(number)
        self.records.append(stored.UnregisterBrokerRecord(broker_id=number))

    def small(self) -> None:
        self.records.append(
            self.pick(
                [
                    stored.NoOpRecord(),
                    stored.FeatureLevelRecord(name="metadata.version", feature_level=30),
                    stored.FeatureLevelRecord(name="group.version", feature_level=self.some(0, 1)),
                    stored.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=len(self.records)),
                    stored.RegisterControllerRecord(controller_id=self.some(1, 2), incarnation_id=uuid_of(3)),
                ]
            )
        )

    def kept(self) -> None:
        number = self.some(1, 2)
        user = [stored.EntityData(entity_type="user", entity_name=self.pick([None, "u"]))]
        self.records.append(
            self.pick(
                [
                    stored.ClientQuotaRecord(entity=user, key="k", value=1.5, remove=bool(self.some(0, 1))),
                    stored.AccessControlEntryRecord(id=uuid_of(number), resource_name="r", principal="User:u"),
                    stored.RemoveAccessControlEntryRecord(id=uuid_of(number)),
                    stored.UserScramCredentialRecord(name="u", mechanism=number, salt=b"s"),
                    stored.RemoveUserScramCredentialRecord(name="u", mechanism=number),
                    stored.DelegationTokenRecord(token_id=str(number), owner="User:u"),
                    stored.RemoveDelegationTokenRecord(token_id=str(number)),
                ]
            )
        )


def history_of(data: st.DataObject) -> History:
    history = History(data)
    for _ in range(data.draw(st.integers(0, 15))):
        history.write()
    return history


def whole(records: Sequence[Any]) -> Image:
    return Image().apply(records, len(records) - 1, 1)


def what_it_shows(image: Image) -> Any:
    mappings = image.topics, image.brokers, image.configs, image.features, image.scram_credentials
    return [dict(each) for each in mappings], image.next_producer_id


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_batches_do_not_matter_and_published_images_stay(data: st.DataObject) -> None:
    records = history_of(data).records
    image, at, published = Image(), 0, []
    while at < len(records):
        upto = data.draw(st.integers(at + 1, len(records)))
        before = image
        image = image.apply(records[at:upto], upto - 1, 1)
        changes = image.changes
        differing = {n for n in {*before.topics, *image.topics} if before.topics.get(n) != image.topics.get(n)}
        assert {*changes.topics, *(topic.name for topic in changes.removed)} >= differing
        assert all(name in image.topics for name in changes.topics)
        assert all(topic is before.topics[topic.name] for topic in changes.removed)
        settings = {*before.configs, *image.configs}
        assert {*changes.configs} >= {n for n in settings if before.configs.get(n) != image.configs.get(n)}
        published.append((image, what_it_shows(image)))
        at = upto
    assert image == whole(records)
    assert all(what_it_shows(earlier) == shown for earlier, shown in published)


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_a_snapshot_is_the_image(data: st.DataObject) -> None:
    image = whole(history_of(data).records)
    frames = [stored.frame_record(record) for record in image.records()]
    assert whole([stored.unframe_record(frame) for frame in frames]) == image


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_topics_are_found_by_name_and_id(data: st.DataObject) -> None:
    history = history_of(data)
    image = whole(history.records)
    assert {topic.name: (topic.id, len(topic.partitions)) for topic in image.topics.values()} == history.topics
    for name, topic in image.topics.items():
        assert image.topic(name) is image.topic_by_id(topic.id) is topic
    gone = {r.topic_id for r in history.records if type(r) is stored.RemoveTopicRecord}
    assert all(image.topic_by_id(topic_id) is None for topic_id in gone)
    assert all(name in image.topics for kind, name in image.configs if kind == TOPIC_RESOURCE)


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_a_transaction_counts_at_its_end_or_not_at_all(data: st.DataObject) -> None:
    records = history_of(data).records
    cut = data.draw(st.integers(0, len(records)))
    before = whole(records[:cut])
    begun = before.apply([stored.BeginTransactionRecord(name="t"), *records[cut:]], 99, 1)
    assert begun.in_transaction
    assert what_it_shows(begun) == what_it_shows(before)
    assert begun.apply([stored.EndTransactionRecord()], 100, 1) == whole(records)
    assert begun.apply([stored.AbortTransactionRecord(reason="r")], 100, 1) == before


def test_partitions_of_a_snapshot_may_come_in_any_order() -> None:
    topic = [stored.TopicRecord(name="t", topic_id=uuid_of(1))]
    rows = [stored.PartitionRecord(topic_id=uuid_of(1), partition_id=n, leader=n, replicas=[n]) for n in range(3)]
    assert whole(topic + rows[::-1]) == whole(topic + rows)
    with pytest.raises(Damage, match="lacks partitions of topic t"):
        whole([*topic, rows[0], rows[2]])


@pytest.mark.parametrize(
    "record",
    [
        stored.PartitionChangeRecord(topic_id=uuid_of(5), partition_id=0),
        stored.RemoveTopicRecord(topic_id=uuid_of(5)),
        stored.UnregisterBrokerRecord(broker_id=5),
        stored.FenceBrokerRecord(id=5),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_about_what_is_not_there_is_damage(record: Any) -> None:
    with pytest.raises(Damage, match=type(record).__name__):
        whole([record])


def test_a_record_that_is_not_known_is_damage() -> None:
    with pytest.raises(Damage, match="which this version does not know"):
        whole([stored.BrokerEndpoint()])


def test_a_change_costs_what_it_touches() -> None:
    """The rest is shared, not copied: one topic changes among many, and the others are the same objects."""
    many: list[Any] = []
    for number in range(1, 500):
        many.append(stored.TopicRecord(name=f"t{number}", topic_id=uuid_of(number)))
        many.append(stored.PartitionRecord(topic_id=uuid_of(number), partition_id=0, leader=1, replicas=[1], isr=[1]))
    before = whole(many)
    after = before.apply([stored.PartitionChangeRecord(topic_id=uuid_of(7), partition_id=0, leader=1)], 1000, 2)
    assert after.changes.topics == ("t7",)
    assert after.topics["t7"].partitions[0].leader_epoch == before.topics["t7"].partitions[0].leader_epoch + 1
    assert all(after.topics[name] is before.topics[name] for name in before.topics if name != "t7")
    assert after.brokers is before.brokers
    assert after.configs is before.configs
