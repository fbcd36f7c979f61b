"""Tests that a client that follows the cursors of DescribeTopicPartitions sees every partition once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.rpc import describe_topic_partitions as rpc
from tests.asking import make
from tests.conftest import WithBroker
from tests.holding import held

TOPICS = {"a": 1, "a.b": 4, "b": 2, "c": 3}


def about(*names: str, limit: int = 2000, at: tuple[str, int] | None = None) -> rpc.Request:
    cursor = None if at is None else rpc.Cursor(topic_name=at[0], partition_index=at[1])
    topics = [rpc.TopicRequest(name=name) for name in names]
    return rpc.Request(topics=topics, response_partition_limit=limit, cursor=cursor)


async def pages(peer: Peer, names: list[str], limit: int) -> list[Any]:
    """All pages, from the first to the one without a cursor."""
    found = []
    at: tuple[str, int] | None = None
    while True:
        page = await peer.ask("DescribeTopicPartitions", about(*names, limit=limit, at=at))
        found.append(page)
        if page.next_cursor is None:
            return found
        at = (page.next_cursor.topic_name, page.next_cursor.partition_index)


def test_pages_show_every_partition_once_and_in_order(tmp_path: Path) -> None:
    with held(tmp_path / "data") as broker:
        for name, count in TOPICS.items():
            broker.run(make(broker.peer, name, partitions=count))

        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
        @given(names=st.lists(st.sampled_from([*TOPICS, "unknown"]), max_size=6), limit=st.integers(1, 12))
        def law(names: list[str], limit: int) -> None:
            found = broker.run(pages(broker.peer, names, limit))
            wanted = set(names) or set(TOPICS)
            shown = [
                (topic.name, p.partition_index) for page in found for topic in page.topics for p in topic.partitions
            ]
            assert shown == sorted((name, i) for name in wanted for i in range(TOPICS.get(name, 0)))
            assert all(sum(len(topic.partitions) for topic in page.topics) <= limit for page in found)
            codes = Counter(topic.error_code for page in found for topic in page.topics if topic.name == "unknown")
            assert set(codes) == ({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} if "unknown" in wanted else set())

        law()


def test_the_fields_of_a_partition(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t")
        page = await peer.ask("DescribeTopicPartitions", about("t", "a b"))
        bad, good = page.topics
        assert (bad.name, bad.error_code, bad.partitions) == ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION, [])
        assert (good.error_code, good.topic_id, good.is_internal) == (0, topic_id, False)
        (partition,) = good.partitions
        own = node.broker.node_id
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (own, [own], [own])
        assert partition.leader_epoch == node.broker.replication.hosting.leads("t", 0).leader_epoch
        assert (partition.eligible_leader_replicas, partition.last_known_elr, partition.offline_replicas) == (
            [],
            [],
            [],
        )

    with_broker(scenario)


@pytest.mark.parametrize("facts", [{"limit": 0}, {"limit": -1}, {"at": ("t", -1)}, {"at": ("other", 0)}], ids=str)
def test_refusals_are_per_topic(facts: dict[str, Any], with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        page = await peer.ask("DescribeTopicPartitions", about("t", "u", **facts))
        assert [(t.name, t.error_code) for t in page.topics] == [
            ("t", ErrorCode.INVALID_REQUEST),
            ("u", ErrorCode.INVALID_REQUEST),
        ]

    with_broker(scenario)


def test_the_brokers_limit_holds(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", partitions=5)
        sizes = [len(page.topics[0].partitions) for page in await pages(peer, ["t"], 2000)]
        assert sizes == [2, 2, 1]

    with_broker(scenario, {"max.request.partition.size.limit": "2"})
