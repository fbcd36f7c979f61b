"""Tests DescribeCluster over a socket, at every version."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import describe_cluster as rpc
from tests.conftest import WithBroker

API = api_table.by_name["DescribeCluster"]


def test_every_version_returns_the_brokers(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for version in range(API.min, API.max + 1):
            reply = await peer.ask("DescribeCluster", rpc.Request(), version=version)
            assert (reply.error_code, reply.cluster_id, reply.controller_id) == (0, node.broker.storage.cluster_id, 1)
            (broker,) = reply.brokers
            assert f"{broker.host}:{broker.port}" == node.bootstrap
            assert (broker.broker_id, broker.rack, broker.is_fenced) == (1, "r1", False)
            assert reply.cluster_authorized_operations == -(1 << 31)
        asked = rpc.Request(include_cluster_authorized_operations=True)
        assert (await peer.ask("DescribeCluster", asked)).cluster_authorized_operations == 8096

    with_broker(scenario, {"broker.rack": "r1"})


def test_a_broker_refuses_requests_about_controllers(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, _node: Node) -> None:
        for kind, code in ((2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)):
            reply = await peer.ask("DescribeCluster", rpc.Request(endpoint_type=kind))
            assert (reply.error_code, reply.brokers) == (code, [])
            assert reply.error_message

    with_broker(scenario)
