"""The controller's state and the Image agree: every history of records results in the same parts in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.controller.state import ControllerState
from kpybroker.errors import Damage
from kpybroker.metadata.image import Image
from kpybroker.metadata.parts import CHANGES, PARTS
from kpybroker.metadata.topics import TOPICS
from kpybroker.wire.stored import metadata as stored
from tests.metadata.histories import history_of, uuid_of

OF_TRANSACTIONS = (stored.BeginTransactionRecord, stored.AbortTransactionRecord, stored.EndTransactionRecord)


def state_after(records: Sequence[Any]) -> ControllerState:
    state = ControllerState()
    for record in records:
        state.replay(record)
    return state


def replayed(state: ControllerState, records: Sequence[Any]) -> str | None:
    """Apply these records to the state, and return the Damage; None if it accepted all of them."""
    try:
        for record in records:
            state.replay(record)
    except Damage as damage:
        return str(damage)
    return None


def image_after(image: Image, records: Sequence[Any]) -> tuple[Image | None, str | None]:
    """The next Image, or the Damage in the records."""
    try:
        return image.apply(records, image.offset + len(records), 1), None
    except Damage as damage:
        return None, str(damage)


def assert_agree(state: ControllerState, image: Image) -> None:
    for part in PARTS:
        if part is not TOPICS:
            assert part.of(state) == part.of(image), part.name
            if part.name != "next_producer_id":
                assert list(part.of(state)) == list(part.of(image)), f"{part.name} in another order"
    assert [(topic.name, topic.id, dict(enumerate(topic.partitions))) for topic in image.topics.values()] == [
        (topic.name, topic.topic_id, topic.partitions) for topic in state.topics.values()
    ]
    assert list(state.open_transaction or ()) == list(image.open_transaction or ())
    assert (state.open_transaction is None) == (image.open_transaction is None)
    assert state.partition_count == sum(len(topic.partitions) for topic in image.topics.values())


@st.composite
def histories(draw: st.DrawFn) -> list[Any]:
    """Histories with metadata transactions that end, are aborted, or stay open. A transaction may begin inside another
    one."""
    records = history_of(draw(st.data())).records
    for place in sorted(draw(st.lists(st.integers(0, len(records)), max_size=4)), reverse=True):
        records.insert(place, draw(st.sampled_from(OF_TRANSACTIONS))())
    return records


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(histories(), st.data())
def test_the_state_and_the_image_agree_on_every_history(records: list[Any], data: st.DataObject) -> None:
    """This includes records that do not fit the state, because they refer to records of an aborted transaction."""
    state, image, at = ControllerState(), Image(), 0
    while at < len(records):
        upto = data.draw(st.integers(at + 1, len(records)))
        batch, at = records[at:upto], upto
        after, of_image = image_after(image, batch)
        if of_image is not None and "lacks partitions" in of_image:
            return  # the Image notices this at the end of a batch, when the next Image is built
        assert replayed(state, batch) == of_image
        if after is None:
            return
        image = after
        assert_agree(state, image)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_new_controller_gets_its_state_from_the_records_of_the_image(data: st.DataObject) -> None:
    """`Quorum.replay` returns these records. Mappings are in the order of a snapshot: metadata.version is the first
    feature."""
    records = history_of(data).records
    image = Image().apply(records, len(records), 1)
    snapshot = list(image.records())
    again = Image().apply(snapshot, len(snapshot), 1)
    assert again == image
    assert_agree(state_after(snapshot), again)


@pytest.mark.parametrize(
    "record",
    [
        stored.BrokerEndpoint(),
        stored.PartitionRecord(topic_id=uuid_of(5), partition_id=0),
        stored.PartitionChangeRecord(topic_id=uuid_of(5), partition_id=0),
        stored.PartitionChangeRecord(topic_id=uuid_of(1), partition_id=1),
        stored.PartitionChangeRecord(topic_id=uuid_of(1), partition_id=-1),
        stored.RemoveTopicRecord(topic_id=uuid_of(5)),
        stored.ClearElrRecord(topic_name="unknown"),
        stored.UnregisterBrokerRecord(broker_id=5),
        stored.FenceBrokerRecord(id=5),
        stored.UnfenceBrokerRecord(id=5),
        stored.BrokerRegistrationChangeRecord(broker_id=5),
    ],
    ids=lambda record: type(record).__name__,
)
def test_both_treat_the_same_records_as_damage(record: Any) -> None:
    before = [stored.TopicRecord(name="t", topic_id=uuid_of(1)), stored.PartitionRecord(topic_id=uuid_of(1))]
    before[-1].partition_id = 0
    for records in ([*before, record], [*before, OF_TRANSACTIONS[0](), record, OF_TRANSACTIONS[2]()]):
        with pytest.raises(Damage) as of_image:
            Image().apply(records, 9, 1)
        with pytest.raises(Damage) as of_state:
            state_after(records)
        assert str(of_image.value) == str(of_state.value)


def test_every_kind_of_record_belongs_to_one_part() -> None:
    of_parts = [kind for part in PARTS for kind in part.changes]
    assert len(of_parts) == len(set(of_parts))
    assert {*CHANGES, *OF_TRANSACTIONS} == {*stored.RECORDS}
    assert {*CHANGES} - {*of_parts} == {stored.NoOpRecord, stored.ZkMigrationStateRecord}
    assert len({part.name for part in PARTS}) == len(PARTS)
