"""Runs a real node on a real socket and a real directory, in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

from kpybroker.client.peer import Peer
from kpybroker.config import parse_config
from kpybroker.server.node import Node
from kpybroker.world.real import RealWorld

Scenario = Callable[[Peer, Node], Awaitable[None]]
SMALL = {"offsets.topic.num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}


@contextlib.asynccontextmanager
async def serving(
    directory: Path, properties: Mapping[str, str] | None = None, seed: int = 7, world: RealWorld | None = None
) -> AsyncIterator[Node]:
    """A node on a free port of 127.0.0.1, stopped cleanly at the end."""
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory), **SMALL, **(properties or {})}
    world = world or RealWorld(seed)
    node = await Node.start(world, parse_config(settings))
    try:
        yield node
    finally:
        await node.stop()
        world.close()


def crashed(directory: Path, into: Path) -> Path:
    """A copy of the directory as it would be after kill -9, without files that do not have their final names yet."""
    return Path(shutil.copytree(directory, into, ignore=shutil.ignore_patterns("*.tmp")))


@contextlib.asynccontextmanager
async def dialled(node: Node) -> AsyncIterator[Peer]:
    """A connection that has negotiated versions."""
    host, _, port = node.bootstrap.rpartition(":")
    peer = await Peer.dial(node.broker.world.network, host, int(port))
    try:
        await peer.negotiate()
        yield peer
    finally:
        peer.close()


def run_scenario(directory: Path, scenario: Scenario, properties: Mapping[str, str] | None = None) -> None:
    """Start a node, connect, run the scenario, stop the node."""

    async def whole() -> None:
        async with serving(directory, properties) as node, dialled(node) as peer:
            await scenario(peer, node)

    asyncio.run(asyncio.wait_for(whole(), 60))
