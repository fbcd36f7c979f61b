"""Tests that the metadata hash of groups is Apache Kafka's. `python -m oracle.metadata_hashes` records the vectors on
Apache Kafka."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kpybroker.groups.ground import subscriptions
from kpybroker.groups.ground.subscriptions import MetadataHashes, topics_of
from kpybroker.metadata.image import Image
from kpybroker.wire.stored import metadata as stored

VECTORS = json.loads((Path(__file__).parent / "metadata_hashes.json").read_text())


def brokers(racks: dict[str, str | None]) -> list[Any]:
    return [
        stored.RegisterBrokerRecord(broker_id=int(node_id), broker_epoch=1, incarnation_id=bytes(16), rack=rack)
        for node_id, rack in racks.items()
    ]


def topic(name: str, topic_id: bytes, partitions: list[list[int]]) -> list[Any]:
    rows = [
        stored.PartitionRecord(partition_id=index, topic_id=topic_id, replicas=replicas, isr=replicas, leader=1)
        for index, replicas in enumerate(partitions)
    ]
    return [stored.TopicRecord(name=name, topic_id=topic_id), *rows]


def image_of(vector: dict[str, Any]) -> Image:
    records = brokers(vector["racks"])
    for name, facts in vector["topics"].items():
        records += topic(name, bytes.fromhex(facts["id"]), facts["replicas"])
    return Image().apply(records, len(records), 1)


def test_hashes_are_those_of_apache_kafka() -> None:
    """Of the groups of all kinds, with one topic and several, with and without racks, and with topics that do not
    exist."""
    image, hashes, groups = image_of(VECTORS), MetadataHashes(), VECTORS["groups"]
    for _ in ("computed", "kept"):
        told = {name: hashes.of(image, topics_of(image.topic, each["reads"])) for name, each in groups.items()}
        assert told == {name: each["hash"] for name, each in groups.items()}


CHANGES: dict[str, list[Any]] = {
    "a partition more": [stored.PartitionRecord(partition_id=2, topic_id=b"t" * 16, replicas=[1], isr=[1], leader=1)],
    "another replica": [stored.PartitionChangeRecord(partition_id=1, topic_id=b"t" * 16, replicas=[1, 2], isr=[1, 2])],
    "another topic of the name": [
        stored.RemoveTopicRecord(topic_id=b"t" * 16),
        *topic("t", b"u" * 16, [[1], [1]]),
    ],
    "another rack": brokers({"1": "c"}),
    "a rack less": brokers({"1": None}),
    "a leader in another epoch": [stored.PartitionChangeRecord(partition_id=1, topic_id=b"t" * 16, leader=1)],
}
KEPT = {"a leader in another epoch"}


@pytest.mark.parametrize("racks", [{"1": "a", "2": "b"}, {"1": None, "2": None}], ids=["with racks", "without racks"])
@pytest.mark.parametrize("change", CHANGES)
def test_kept_hashes_are_those_of_the_current_metadata(change: str, racks: dict[str, str | None]) -> None:
    """The hash changes with each fact that it is of, and with no other one."""
    before = Image().apply([*brokers(racks), *topic("t", b"t" * 16, [[1], [1]])], 1, 1)
    after = before.apply(CHANGES[change], 2, 1)
    hashes = MetadataHashes()
    told = [hashes.of(image, topics_of(image.topic, ["t"])) for image in (before, after)]
    assert told == [MetadataHashes().of(image, topics_of(image.topic, ["t"])) for image in (before, after)]
    is_kept = change in KEPT or (racks["1"] is None and change in ("another replica", "a rack less"))
    assert (told[0] == told[1]) == is_kept


def test_the_hashes_that_are_kept_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "TOPICS_MAX", 3)
    hashes, image = MetadataHashes(), Image()
    for number in range(10):
        name = f"t{number}"
        image = image.apply(topic(name, name.encode().ljust(16), [[1]]), number, 1)
        before = hashes.of(image, topics_of(image.topic, [name]))
        assert hashes.kept <= 3
        assert before == hashes.of(image, topics_of(image.topic, [name]))
