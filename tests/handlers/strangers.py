"""Brokers that only register and send heartbeats, for tests. They serve no clients."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from kpybroker.call import CONTROLLER
from kpybroker.client.peer import Peer
from kpybroker.controller.features import SUPPORTED_FEATURES
from kpybroker.server.node import Node
from kpybroker.wire.rpc import broker_heartbeat, broker_registration


class Stranger:
    """A broker that sends registrations and heartbeats through `peer`."""

    def __init__(self, peer: Peer, cluster_id: str, node_id: int, incarnation: int = 1) -> None:
        self.peer = peer
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.incarnation = incarnation
        self.epoch = -1

    def registration(self, **facts: Any) -> broker_registration.Request:
        rpc = broker_registration
        wanted: dict[str, Any] = {
            "broker_id": self.node_id,
            "cluster_id": self.cluster_id,
            "incarnation_id": bytes([self.node_id, self.incarnation]) * 8,
            "listeners": [rpc.Listener(name="PLAINTEXT", host="127.0.0.1", port=1)],
            "features": [
                rpc.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in SUPPORTED_FEATURES.items()
            ],
            "rack": None,
            "log_dirs": [bytes([self.node_id]) * 16],
        }
        return rpc.Request(**{**wanted, **facts})

    async def register(self) -> int:
        """Register, and store the broker epoch. Returns the error code."""
        told = await self.peer.ask("BrokerRegistration", self.registration())
        self.epoch = told.broker_epoch
        code: int = told.error_code
        return code

    async def beat(self, version: int = 2, **facts: Any) -> Any:
        """Send a heartbeat. The broker has caught up unless `facts` say otherwise."""
        wanted = {"broker_id": self.node_id, "broker_epoch": self.epoch, "current_metadata_offset": 1 << 40, **facts}
        return await self.peer.ask("BrokerHeartbeat", broker_heartbeat.Request(**wanted), version=version)


@contextlib.asynccontextmanager
async def inner(node: Node) -> AsyncIterator[Peer]:
    """A connection to the controller listener of the node."""
    port = await node.server.start("127.0.0.1", 0, "CONTROLLER", CONTROLLER)
    peer = await Peer.dial(node.broker.world.network, "127.0.0.1", port)
    try:
        await peer.negotiate()
        yield peer
    finally:
        peer.close()


@contextlib.asynccontextmanager
async def live_stranger(node: Node, node_id: int = 2) -> AsyncIterator[Stranger]:
    """A second broker, registered and unfenced."""
    async with inner(node) as peer:
        stranger = Stranger(peer, node.broker.storage.cluster_id, node_id)
        assert await stranger.register() == 0
        assert not (await stranger.beat()).is_fenced
        yield stranger
