"""Tests BrokerHeartbeat over a socket, at every version."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from tests.conftest import WithBroker
from tests.handlers.strangers import Stranger, inner

API = api_table.by_name["BrokerHeartbeat"]


def test_every_version_fences_unfences_and_shuts_down(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        async with inner(node) as peer:
            for version in range(API.min, API.max + 1):
                stranger = Stranger(peer, node.broker.storage.cluster_id, 10 + version)
                await stranger.register()
                behind = await stranger.beat(version, current_metadata_offset=stranger.epoch - 1)
                assert (behind.is_caught_up, behind.is_fenced) == (False, True)
                level = await stranger.beat(version, current_metadata_offset=stranger.epoch)
                assert (level.is_caught_up, level.is_fenced) == (True, False)
                assert not node.broker.metadata.image.brokers[stranger.node_id].fenced
                assert (await stranger.beat(version, want_fence=True)).is_fenced
                assert not (await stranger.beat(version)).is_fenced
                gone = await stranger.beat(version, want_shut_down=True)
                assert (gone.is_fenced, gone.should_shut_down) == (True, True)

    with_broker(scenario)


def test_another_epoch_is_refused(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        async with inner(node) as peer:
            stranger = Stranger(peer, node.broker.storage.cluster_id, 2)
            assert (await stranger.beat()).error_code == ErrorCode.STALE_BROKER_EPOCH
            await stranger.register()
            told = await stranger.beat(broker_epoch=stranger.epoch + 1)
            assert told.error_code == ErrorCode.STALE_BROKER_EPOCH

    with_broker(scenario)


def test_clients_cannot_send_it(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, _: Node) -> None:
        assert API.key not in peer.versions

    with_broker(scenario)
