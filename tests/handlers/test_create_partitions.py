"""Tests CreatePartitions over a socket, at every version."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import create_partitions as rpc
from kpybroker.wire.rpc import create_topics
from tests.conftest import WithBroker
from tests.handlers.test_create_topics import topic

API = api_table.by_name["CreatePartitions"]


def grow(name: str, count: int, *replicas: list[int]) -> rpc.CreatePartitionsTopic:
    assignments = [rpc.CreatePartitionsAssignment(broker_ids=ids) for ids in replicas] or None
    return rpc.CreatePartitionsTopic(name=name, count=count, assignments=assignments)


def test_every_version_grows_a_topic_that_is_served_at_once(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await peer.ask("CreateTopics", create_topics.Request(topics=[topic("a")]))
        for count, version in enumerate(range(API.min, API.max + 1), 2):
            asked = rpc.Request(topics=[grow("a", count), grow("nosuch", 2)])
            reply = await peer.ask("CreatePartitions", asked, version=version)
            assert [(told.name, told.error_code) for told in reply.results] == [
                ("a", 0),
                ("nosuch", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ]
            assert node.broker.replication.hosting.leads("a", count - 1).log.end == 0

    with_broker(scenario)


def test_refusals_change_nothing(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await peer.ask("CreateTopics", create_topics.Request(topics=[topic("a", 3)]))
        for asked, code in (
            (grow("a", 3), ErrorCode.INVALID_PARTITIONS),
            (grow("a", 4, [9]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (grow("a", 20_000), ErrorCode.POLICY_VIOLATION),
        ):
            (told,) = (await peer.ask("CreatePartitions", rpc.Request(topics=[asked]))).results
            assert (told.name, told.error_code) == ("a", code)
        reply = await peer.ask("CreatePartitions", rpc.Request(topics=[grow("a", 4)], validate_only=True))
        assert reply.results[0].error_code == 0
        assert len(node.broker.metadata.image.topics["a"].partitions) == 3

    with_broker(scenario)
