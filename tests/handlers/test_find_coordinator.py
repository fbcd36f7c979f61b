"""Tests FindCoordinator over a socket, at every version."""

from __future__ import annotations

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import find_coordinator as rpc
from tests.conftest import WithBroker
from tests.handlers.grouping import member

API = api_table.by_name["FindCoordinator"]
TRANSACTION, SHARE = 1, 2


def found(reply: rpc.Response, version: int) -> rpc.Response | rpc.Coordinator:
    return reply.coordinators[0] if version >= 4 else reply


def test_every_version_finds_the_broker_that_metadata_shows(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for version in range(API.min, API.max + 1):
            reply = await peer.ask("FindCoordinator", rpc.Request(key="g", coordinator_keys=["g"]), version=version)
            answer = found(reply, version)
            assert (answer.error_code, answer.node_id) == (0, node.broker.node_id)
            assert f"{answer.host}:{answer.port}" == node.bootstrap

    with_broker(scenario)


def test_the_first_request_creates_the_topic_and_a_group_can_join_at_once(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        assert node.broker.metadata.image.topic("__consumer_offsets") is None
        reply = await peer.ask("FindCoordinator", rpc.Request(coordinator_keys=["g", "h", "😀"]))
        assert [(each.key, each.error_code) for each in reply.coordinators] == [("g", 0), ("h", 0), ("😀", 0)]
        topic = node.broker.metadata.image.topic("__consumer_offsets")
        assert topic is not None
        assert len(topic.partitions) == 2
        assert await member(peer, "g")

    with_broker(scenario)


@pytest.mark.parametrize(("key_type", "why"), [(SHARE, "group:topicId:partition"), (9, "does not serve")])
def test_unserved_coordinators_are_refused_with_a_fatal_error(with_broker: WithBroker, key_type: int, why: str) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for version in range(1, API.max + 1):
            asked = rpc.Request(key="x", key_type=key_type, coordinator_keys=["x"])
            answer = found(await peer.ask("FindCoordinator", asked, version=version), version)
            assert (answer.error_code, answer.node_id) == (ErrorCode.INVALID_REQUEST, -1)
            is_early = key_type == SHARE and version < API.max
            assert ("version 6 or later" if is_early else why) in (answer.error_message or "")

    with_broker(scenario)


def test_share_partitions_have_coordinators_from_version_6_on(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        key = "a:b:jLl8YSDjSNGpc1-g2V35Rw:0"
        reply = await peer.ask("FindCoordinator", rpc.Request(key_type=SHARE, coordinator_keys=[key]))
        (answer,) = reply.coordinators
        assert (answer.key, answer.error_code, answer.node_id) == (key, 0, node.broker.node_id)

    with_broker(scenario)


def test_the_error_says_why_the_topic_cannot_be_created(
    with_broker: WithBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        reply = await peer.ask("FindCoordinator", rpc.Request(coordinator_keys=["g"]))
        (answer,) = reply.coordinators
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "segment.bytes" in answer.error_message
        assert "__consumer_offsets" in caplog.text
        assert "segment.bytes" in caplog.text

    with_broker(scenario, {"offsets.topic.segment.bytes": "65536"})


def test_the_first_request_creates_the_transaction_topic(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        asked = rpc.Request(key="x", key_type=TRANSACTION, coordinator_keys=["x"])
        for version in range(1, API.max + 1):
            answer = found(await peer.ask("FindCoordinator", asked, version=version), version)
            assert (answer.error_code, answer.node_id) == (0, node.broker.node_id)
        topic = node.broker.metadata.image.topic("__transaction_state")
        assert topic is not None
        assert len(topic.partitions) == 3
        settings = node.broker.metadata.image.config(2, "__transaction_state")
        assert (settings["cleanup.policy"], settings["min.insync.replicas"]) == ("compact", "1")

    with_broker(scenario, {"transaction.state.log.num.partitions": "3"})
