"""Helper for tests of APIs that refuse every request, in every version, on both listeners."""

from __future__ import annotations

from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.server.node import Node
from kpybroker.wire.api import Api
from tests.conftest import WithBroker


def told_in_every_version(with_broker: WithBroker, api: Api, request: Any) -> list[Any]:
    """The responses on a broker's and on a controller's listener, in every version. Asserts that no metadata record was
    written."""
    told: list[Any] = []

    async def scenario(peer: Peer, node: Node) -> None:
        port = await node.server.start("127.0.0.1", 0, "CONTROLLER", "controller")
        inner = await Peer.dial(node.broker.world.network, "127.0.0.1", port)
        before = list(node.broker.metadata.image.records())
        for version in range(api.min, api.max + 1):
            told.append(await peer.ask(api.name, request, version=version))
            told.append(await inner.ask(api.name, request, version=version))
        assert list(node.broker.metadata.image.records()) == before
        inner.close()

    with_broker(scenario)
    assert len(told) == 2 * (api.max - api.min + 1)
    return told
