"""Tests of the search for the oldest message format of each log. The compat tests run it on logs of old formats, which
only Apache Kafka serves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kpybroker.cli import message_formats
from kpybroker.cli.cluster_check import PREVENTS, UNKNOWN, Finding, of_formats
from kpybroker.cli.message_formats import LogFormats
from kpybroker.client import session
from kpybroker.client.client import Client
from kpybroker.testing import Broker

SIZES = (1, 10_000, 10_000, 0, 400_000, 400_000, 400_000, 0, 5)
"""The size of the only record of each partition, of which some fit into no step before the last; 0 for an empty log."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(in_thread=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    """A topic whose partitions have the SIZES."""
    name = broker.topic("sizes", partitions=len(SIZES))
    for partition, size in enumerate(SIZES):
        if size:
            broker.send(name, bytes(size), partition=partition)
    return name


@pytest.fixture(scope="module")
def other(broker: Broker) -> str:
    """A topic with one empty partition."""
    return broker.topic("other", partitions=1)


def look(bootstrap: str) -> tuple[LogFormats, list[tuple[int, int]]]:
    """The result, and what was told of the progress."""
    found: list[LogFormats] = []
    told: list[tuple[int, int]] = []

    async def scenario(client: Client) -> None:
        topics = await client.metadata()
        found.append(await message_formats.look(client, topics.values(), lambda *moved: told.append(moved)))

    session.run(scenario, bootstrap)
    return found[0], told


def test_the_first_batch_of_each_log_is_found(broker: Broker, topic: str) -> None:
    """Whatever its size is, and although a leader leaves out the large ones of a Fetch."""
    found, told = look(broker.bootstrap)
    assert found == LogFormats({(topic, index): 2 for index, size in enumerate(SIZES) if size}, {})
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]


@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_the_number_of_requests_is_bounded(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(message_formats, "FETCHES_MAX", most)
    found, _ = look(broker.bootstrap)
    assert set(found.unknown.values()) == {f"not looked at, after {most} requests to broker 1"}
    known = {(topic, index) for index, size in enumerate(SIZES) if size} - set(found.unknown)
    assert set(found.oldest) == known
    assert bool(known) == bool(most)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        ("TOPIC_AUTHORIZATION_FAILED", "the user of this command may not read it (TOPIC_AUTHORIZATION_FAILED)"),
        ("NOT_LEADER_OR_FOLLOWER", "its leader, broker 1, answered NOT_LEADER_OR_FOLLOWER; run this again"),
        ("KAFKA_STORAGE_ERROR", "its leader, node 1, cannot read or write its log (KAFKA_STORAGE_ERROR)"),
    ],
)
def test_refused_logs_are_unknown(broker: Broker, topic: str, other: str, error: str, why: str) -> None:
    with broker.fault("ListOffsets", error=error):
        found, _ = look(broker.bootstrap)
    assert found.oldest == {}
    assert set(found.unknown) == {(other, 0), *((topic, index) for index in range(len(SIZES)))}
    assert all(told.startswith(why) for told in found.unknown.values())


@pytest.mark.parametrize("api", ["Fetch", "ListOffsets"])
def test_logs_of_a_broker_that_ends_the_connection_are_unknown(
    broker: Broker, topic: str, other: str, api: str
) -> None:
    with broker.fault(api, disconnect=True):
        found, _ = look(broker.bootstrap)
    assert found.oldest == {}
    assert set(found.unknown) == {(other, 0), *((topic, index) for index in range(len(SIZES)))}


def test_old_formats_prevent_a_move_and_name_some_logs() -> None:
    formats = LogFormats({("t", index): 1 for index in range(7)} | {("u", 0): 0, ("v", 0): 2}, {("w", 3): "because"})
    found = [(each.level, each.where, each.what) for each in of_formats(formats)]
    assert found == [
        (PREVENTS, "partition u-0", "messages of format 0"),
        (PREVENTS, "partitions t-0, t-1, t-2, t-3, t-4 and 2 more", "messages of format 1"),
        (UNKNOWN, "partition w-3", "formats of its messages"),
    ]
    assert list(of_formats(LogFormats({("v", 0): 2}, {}))) == []
    assert list(of_formats(LogFormats({}, {("w", 3): "because"}))) == [
        Finding(UNKNOWN, "partition w-3", "formats of its messages", "because")
    ]
