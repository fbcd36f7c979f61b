"""Invariants of the Image: the division of records into batches does not matter, a snapshot gives an equal Image, and a
published Image never changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import Damage
from kpybroker.metadata.image import Image
from kpybroker.wire.stored import metadata as stored
from tests.metadata.histories import history_of, uuid_of


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
        assert image.topic(name) is image.topic_by_id(topic.id)
        retirement = image.retirement(name)
        assert retirement is not None or image.topic(name) is topic
    gone = {r.topic_id for r in history.records if type(r) is stored.RemoveTopicRecord}
    assert all(image.topic_by_id(topic_id) is None for topic_id in gone)
    assert all(name in image.topics for kind, name in image.configs if kind == ResourceType.TOPIC)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_partition_is_shown_once_unless_it_is_retired_and_empty(data: st.DataObject) -> None:
    image = whole(history_of(data).records)
    found = {
        image.stored_as(name, index): topic.partitions[index]
        for name, topic in image.readable.items()
        if image.view(name) is None
        for index in range(len(topic.partitions))
    }
    for name, topic in image.topics.items():
        retirement = image.retirement(name)
        for index, partition in enumerate(topic.partitions):
            if retirement is None or index < retirement.in_use or retirement.is_shown:
                assert found.pop((name, index)) is partition
    assert not found


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_a_transaction_takes_effect_at_its_end_or_not_at_all(data: st.DataObject) -> None:
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
def test_a_record_about_something_unknown_is_damage(record: Any) -> None:
    with pytest.raises(Damage, match=type(record).__name__):
        whole([record])


def test_a_record_of_an_unknown_kind_is_damage() -> None:
    with pytest.raises(Damage, match="which this version of kpybroker does not support"):
        whole([stored.BrokerEndpoint()])


def test_the_cost_of_a_change_does_not_depend_on_the_rest() -> None:
    """Unchanged parts are shared instead of copied: if one of many topics changes, the other topics stay the same
    objects."""
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
