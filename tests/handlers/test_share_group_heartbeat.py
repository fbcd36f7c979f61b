"""Tests ShareGroupHeartbeat over a socket."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.rpc import update_features
from tests.conftest import WithBroker
from tests.handlers.sharing import AT_ONCE, beat, configure, joined, topic


def test_a_member_joins_stays_and_leaves(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        assert (await beat(peer, "g", "m", 0, "t")).error_code == ErrorCode.NOT_COORDINATOR
        topic_id = await topic(peer, partitions=2)
        told = await joined(peer)
        [row] = told.assignment.topic_partitions
        assert (told.member_id, bytes(row.topic_id), row.partitions) == ("m", topic_id, [0, 1])
        again = await beat(peer, "g", "m", told.member_epoch)
        assert (again.error_code, again.member_epoch, again.assignment) == (0, told.member_epoch, None)
        wrong = await beat(peer, "g", "m", told.member_epoch + 1)
        assert wrong.error_code == ErrorCode.FENCED_MEMBER_EPOCH
        assert (await beat(peer, "g", "m", -1)).member_epoch == -1
        assert (await beat(peer, "g", "m", 1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await beat(peer, "", "m", 0, "t")).error_code == ErrorCode.INVALID_REQUEST

    with_broker(scenario, AT_ONCE)


def test_settings_of_a_group_are_heard_with_the_next_heartbeat(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await topic(peer)
        assert (await joined(peer)).heartbeat_interval_ms == 5_000
        await configure(peer, "g", heartbeat_interval_ms=7_000)
        assert (await joined(peer)).heartbeat_interval_ms == 7_000

    with_broker(scenario, AT_ONCE)


def test_without_the_feature_share_groups_are_not_served(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await topic(peer)
        off = update_features.FeatureUpdateKey(feature="share.version", max_version_level=0, upgrade_type=2)
        assert (await peer.ask("UpdateFeatures", update_features.Request(feature_updates=[off]))).error_code == 0
        assert (await beat(peer, "g", "m", 0, "t")).error_code == ErrorCode.UNSUPPORTED_VERSION

    with_broker(scenario, AT_ONCE)
