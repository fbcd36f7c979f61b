"""Tests DescribeLogDirs over a socket, at every version."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import create_topics
from kpybroker.wire.rpc import describe_log_dirs as rpc
from tests.conftest import WithBroker
from tests.handlers.test_create_topics import topic

API = api_table.by_name["DescribeLogDirs"]


def test_every_version_returns_the_sizes_of_partitions(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await peer.ask("CreateTopics", create_topics.Request(topics=[topic("a", 2), topic("b")]))
        for version in range(API.min, API.max + 1):
            reply = await peer.ask("DescribeLogDirs", rpc.Request(topics=None), version=version)
            (directory,) = reply.results
            assert (directory.error_code, directory.log_dir) == (0, node.broker.config.log_dirs[0])
            sizes = {(t.name, p.partition_index): p.partition_size for t in directory.topics for p in t.partitions}
            assert sizes == {("a", 0): 0, ("a", 1): 0, ("b", 0): 0}
            assert not any(p.is_future_key or p.offset_lag for t in directory.topics for p in t.partitions)
            if version >= 4:
                assert 0 < directory.usable_bytes <= directory.total_bytes

    with_broker(scenario)


def test_only_requested_partitions_are_returned(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, _node: Node) -> None:
        await peer.ask("CreateTopics", create_topics.Request(topics=[topic("a", 2), topic("b")]))
        asked = [rpc.DescribableLogDirTopic(topic=name, partitions=[1, 5]) for name in ("a", "nosuch")]
        (directory,) = (await peer.ask("DescribeLogDirs", rpc.Request(topics=asked))).results
        assert [(t.name, [p.partition_index for p in t.partitions]) for t in directory.topics] == [("a", [1])]
        (directory,) = (await peer.ask("DescribeLogDirs", rpc.Request(topics=[]))).results
        assert directory.topics == []

    with_broker(scenario)
