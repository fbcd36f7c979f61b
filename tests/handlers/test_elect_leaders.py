"""Tests ElectLeaders over a socket, at every version."""

from __future__ import annotations

import pytest

from kpybroker.client.peer import Peer
from kpybroker.controller.commands import ElectionType
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import elect_leaders as rpc
from tests.conftest import WithBroker
from tests.handlers.strangers import live_stranger
from tests.handlers.test_alter_partition import make_topic, proposal

pytestmark = pytest.mark.slow

API = api_table.by_name["ElectLeaders"]
OURS = [rpc.TopicPartitions(topic="t", partitions=[0])]


def codes(told: rpc.Response) -> list[tuple[str, int, int]]:
    return [
        (topic.topic, each.partition_id, each.error_code)
        for topic in told.replica_election_results
        for each in topic.partition_result
    ]


def test_every_version_elects_the_preferred_leader(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with live_stranger(node) as stranger:
            await make_topic(peer, 2, 1)
            for version in range(API.min, API.max + 1):
                await stranger.beat(want_fence=True)
                now = node.broker.metadata.image.topics["t"].partitions[0]
                assert (now.leader, now.isr) == (1, (1,))
                ask_all = rpc.Request(topic_partitions=None)
                told = await peer.ask("ElectLeaders", ask_all, version=version)
                assert codes(told) == [("t", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
                await stranger.beat()
                await stranger.peer.ask("AlterPartition", proposal(node, stranger, [1, 2]))
                told = await peer.ask("ElectLeaders", rpc.Request(topic_partitions=OURS), version=version)
                assert codes(told) == [("t", 0, 0)]
                assert node.broker.metadata.image.topics["t"].partitions[0].leader == 2
                told = await peer.ask("ElectLeaders", ask_all, version=version)
                assert codes(told) == [], "none was needed"

    with_broker(scenario)


def test_an_unclean_election_requires_a_missing_leader(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with live_stranger(node) as stranger:
            await make_topic(peer, 2, 1)
            unclean = rpc.Request(election_type=ElectionType.UNCLEAN, topic_partitions=OURS)
            assert codes(await peer.ask("ElectLeaders", unclean)) == [("t", 0, ErrorCode.ELECTION_NOT_NEEDED)]
            topic = node.broker.metadata.image.topics["t"]
            request = proposal(node, stranger, [2])
            request.broker_id, request.broker_epoch = 2, stranger.epoch
            await stranger.peer.ask("AlterPartition", request)
            await stranger.beat(want_fence=True)
            assert node.broker.metadata.image.topics["t"].partitions[0].leader == -1
            preferred = rpc.Request(topic_partitions=OURS)
            assert codes(await peer.ask("ElectLeaders", preferred)) == [
                ("t", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
            ]
            assert codes(await peer.ask("ElectLeaders", unclean)) == [("t", 0, 0)]
            now = node.broker.metadata.image.topics["t"].partitions[0]
            assert (now.leader, now.isr, now.leader_recovery_state) == (1, (1,), 1)
            assert now.leader_epoch > topic.partitions[0].leader_epoch

    with_broker(scenario)


def test_an_unknown_type_of_election(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, _: Node) -> None:
        told = await peer.ask("ElectLeaders", rpc.Request(election_type=5, topic_partitions=OURS))
        assert told.error_code == ErrorCode.INVALID_REQUEST
        assert codes(told) == [("t", 0, ErrorCode.INVALID_REQUEST)]

    with_broker(scenario)
