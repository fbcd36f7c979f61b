"""Tests until when retired partitions accept records, and what is logged about late producers."""

from __future__ import annotations

import logging

import pytest

from kpybroker.broker.closed_partitions import PRODUCERS_MAX, ClosedPartitions
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import Image
from kpybroker.metadata.retirements import Retirement
from kpybroker.wire.stored import metadata as stored

TOPIC_ID = bytes(range(16))


def image_of(in_use: int, grace_ms: int) -> Image:
    """An Image with the topic t, which has four partitions."""
    partitions = [stored.PartitionRecord(topic_id=TOPIC_ID, partition_id=index, replicas=[1]) for index in range(4)]
    retirement = Retirement("t", TOPIC_ID, 4, in_use, grace_ms)
    records = [stored.TopicRecord(name="t", topic_id=TOPIC_ID), *partitions]
    return Image().apply([*records, retirement.record()] if in_use < 4 else records, 9, 1)


def test_the_grace_period_counts_from_the_change_of_the_partitions_in_use() -> None:
    closed = ClosedPartitions()
    closed.follow(image_of(4, 5000), 50.0)
    assert not closed.has("t", 3, 1000.0)
    closed.follow(image_of(2, 5000), 100.0)
    closed.follow(image_of(2, 5000), 103.0)
    assert [closed.has("t", index, at_s) for index, at_s in ((1, 200.0), (2, 104.9), (2, 105.0))] == [
        False,
        False,
        True,
    ]
    closed.follow(image_of(2, 9000), 106.0)
    assert [closed.has("t", 2, at_s) for at_s in (108.9, 109.0)] == [False, True], "the change was at 100"
    closed.follow(image_of(1, 9000), 110.0)
    assert [closed.has("t", 3, at_s) for at_s in (118.9, 119.0)] == [False, True]
    closed.follow(image_of(4, 9000), 111.0)
    assert not closed.has("t", 3, 1000.0)


def test_late_producers_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    closed = ClosedPartitions()
    closed.follow(image_of(2, 5000), 100.0)
    with caplog.at_level(logging.WARNING):
        closed.admit("t", 1, "p", "10.0.0.1", 101.0)
        closed.admit("u", 3, "p", "10.0.0.1", 101.0)
        assert caplog.messages == []
        for at_s in (101.0, 102.0):
            closed.admit("t", 3, "p\n", "10.0.0.1", at_s)
        [line] = caplog.messages
        assert line.startswith(
            r"client 'p\n' at 10.0.0.1 still writes to t-3, which is retired; its records there are "
        )
        assert "accepted for 4 more seconds" in line
        with pytest.raises(KafkaError) as refused:
            closed.admit("t", 3, "q", "10.0.0.1", 105.0)
        assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert "are refused" in caplog.messages[1]
        for number in range(PRODUCERS_MAX * 2):
            closed.admit("t", 3, f"p{number}", "10.0.0.1", 104.0)
        assert len(caplog.messages) == PRODUCERS_MAX
        closed.follow(image_of(1, 5000), 200.0)
        closed.admit("t", 3, "p", "10.0.0.1", 201.0)
        assert len(caplog.messages) == PRODUCERS_MAX + 1
