"""If the disk of a log fails and there is no other replica, the log goes offline. Other logs are still served."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.replication.partition.partition import Partition
from kpybroker.server.metrics.endpoints import why_not_ready
from kpybroker.server.node import Node
from kpybroker.wire.rpc import delete_topics
from tests.asking import make, put
from tests.conftest import WithBroker
from tests.serving import dialled, serving


def fill_up(partition: Partition) -> None:
    """Make all writes to the active segment fail, because the device is full."""
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, partition.log.segments.active.handle())
    os.close(full)


def hosted(node: Node, topic: str) -> Partition:
    partition = node.broker.replication.hosting.find(topic, 0)
    assert partition is not None
    return partition


def test_only_partitions_without_other_replicas_go_offline(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for topic in ("lost", "served"):
            await make(peer, topic)
            assert (await put(peer, topic, b"before")).error_code == 0
        assert why_not_ready(node.broker) is None
        fill_up(hosted(node, "lost"))
        assert (await put(peer, "lost", b"x")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await put(peer, "served", b"x")).error_code == 0
        await asyncio.sleep(0)
        assert not node.failed.done()
        why = why_not_ready(node.broker) or ""
        assert "lost-0 is offline" in why
        assert "No space left on device" in why

    with_broker(scenario)


def test_a_damaged_replica_is_forgotten_with_its_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as node, dialled(node) as peer:
            await make(peer, "t")
            await put(peer, "t", b"x")
        with (tmp_path / "t-0" / "00000000000000000000.log").open("ab") as file:
            file.write(b"garbage" * 10)
        async with serving(tmp_path) as node, dialled(node) as peer:
            assert "t-0 is offline" in (why_not_ready(node.broker) or "")
            asked = delete_topics.Request(topics=[delete_topics.DeleteTopicState(name="t")], timeout_ms=5000)
            assert (await peer.ask("DeleteTopics", asked)).responses[0].error_code == 0
            assert why_not_ready(node.broker) is None
            await make(peer, "t")
            assert (await put(peer, "t", b"y")).base_offset == 0
            assert why_not_ready(node.broker) is None

    asyncio.run(scenario())
