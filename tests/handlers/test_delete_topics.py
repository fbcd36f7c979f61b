"""Tests DeleteTopics over a socket, at every version."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.replication.partition.partition import Partition
from kpybroker.server.node import Node
from kpybroker.storage.files.segment import Segment
from kpybroker.storage.log.log import Log
from kpybroker.storage.log.log_files import LogFiles
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import create_topics
from kpybroker.wire.rpc import delete_topics as rpc
from tests.asking import fetched, put
from tests.conftest import WithBroker
from tests.handlers.test_create_topics import topic

API = api_table.by_name["DeleteTopics"]


def by_name(version: int, *names: str) -> rpc.Request:
    if version < 6:
        return rpc.Request(topic_names=list(names))
    return rpc.Request(topics=[rpc.DeleteTopicState(name=name) for name in names])


def test_every_version_deletes(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for version in range(API.min, API.max + 1):
            await peer.ask("CreateTopics", create_topics.Request(topics=[topic("a")]))
            topic_id = node.broker.metadata.image.topics["a"].id
            reply = await peer.ask("DeleteTopics", by_name(version, "a", "nosuch"), version=version)
            assert [told.error_code for told in reply.responses] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            assert [told.name for told in reply.responses] == ["a", "nosuch"]
            if version >= 6:
                assert reply.responses[0].topic_id == topic_id
            assert "a" not in node.broker.metadata.image.topics
            assert node.broker.replication.hosting.find("a", 0) is None

    with_broker(scenario)


def test_by_id(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await peer.ask("CreateTopics", create_topics.Request(topics=[topic("a")]))
        topic_id = node.broker.metadata.image.topics["a"].id
        asked = [rpc.DeleteTopicState(name=None, topic_id=i) for i in (topic_id, b"n" * 16)]
        known, unknown = (await peer.ask("DeleteTopics", rpc.Request(topics=asked), version=6)).responses
        assert (known.name, known.error_code) == ("a", 0)
        assert (unknown.name, unknown.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)

    with_broker(scenario)


def test_with_deletion_disabled_every_topic_is_refused(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, _node: Node) -> None:
        for version in (1, 6):
            reply = await peer.ask("DeleteTopics", by_name(version, "a", "b"), version=version)
            assert [told.error_code for told in reply.responses] == [ErrorCode.TOPIC_DELETION_DISABLED] * 2

    with_broker(scenario, {"delete.topic.enable": "false"})


@contextmanager
def without_collector() -> Iterator[None]:
    """Nothing is freed that refers to itself."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_the_memory_of_a_deleted_partition_is_freed_at_once(with_broker: WithBroker) -> None:
    """It does not wait for a collection of all objects, which is rare, because most of a broker's objects live long."""

    async def scenario(peer: Peer, node: Node) -> None:
        with without_collector():
            for name in ("a", "b", "c"):
                await peer.ask("CreateTopics", create_topics.Request(topics=[topic(name)]))
                assert (await put(peer, name, b"x")).error_code == 0
                await peer.ask("Fetch", fetched(name, 0), version=12)
                await peer.ask("DeleteTopics", by_name(API.max, name))
            kinds = (Partition, Log, LogFiles, Segment)
            left = [
                each for each in gc.get_objects() if isinstance(each, kinds) and "cluster_metadata" not in repr(each)
            ]
            assert len(left) <= len(kinds), left  # the last request may still be known to the connection

    with_broker(scenario)
