"""A node works with every accepted value of each setting: it appends, rolls, cleans, applies retention, and
restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kpybroker.config.effect import BROKER, KEYS, TOPIC
from kpybroker.config.key import Mode
from kpybroker.controller.commands import AlterOp
from kpybroker.metadata.quotas import Entity
from kpybroker.server.node import Node
from kpybroker.storage.dirs.cleaner import Cleaner
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import alter_client_quotas as quotas
from tests.asking import fetched, make, produced
from tests.boundaries import values_of
from tests.handlers.test_alter_client_quotas import entry
from tests.handlers.test_incremental_alter_configs import change, code
from tests.serving import dialled, serving

pytestmark = pytest.mark.slow

EVERYBODY: Entity = (("user", None),)
OFF = {
    "log.cleaner.enable": "false",
    "log.segment.delete.delay.ms": "0",
    "unstable.feature.versions.enable": "true",
}
"""The settings of the node. The cleaner is disabled, because the test calls it. Settings of later releases of Apache
Kafka can be changed."""
PATIENCE_S = 0.3
"""A value that makes the work slow is removed after this time."""
CHOSEN = [
    (BROKER, "log.cleaner.io.buffer.load.factor"),
    (BROKER, "log.cleaner.dedupe.buffer.size"),
    (TOPIC, "segment.index.bytes"),
]
"""The settings that the fast test tries. The slow test tries all settings."""
DOORS = ("max.connections", "max.connections.per.ip", "max.connections.per.ip.overrides")
"""Settings with a minimum that would not allow enough connections for the test."""
ALL = [
    (kind, key.name)
    for kind in (TOPIC, BROKER)
    for key in KEYS[kind].values()
    if key.has_effect and (kind == TOPIC or key.mode is Mode.CLUSTER_WIDE) and key.name not in DOORS
]


OWN = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "max.compaction.lag.ms": "1"}
"""The settings of the compacted topic, which are restored after each try."""


async def work(node: Node) -> int:
    """Append, roll, clean and apply retention. Return how many logs were cleaned."""
    broker, now_ms, cleaned = node.broker, node.broker.world.wall_ms(), 0
    for topic in ("compacted", "retained"):
        partition = broker.replication.hosting.leads(topic, 0)
        async with dialled(node) as peer:
            for _ in range(2):
                rows: list[tuple[bytes | None, bytes | None]] = [(b"a", b"1"), (b"a", None), (b"b", b"2"), (b"c", None)]
                records = bytes(encode_batch(rows, timestamp_ms=now_ms - 10))
                await peer.ask("Produce", produced(topic, records=records), version=9)
            await peer.ask("Fetch", fetched(topic, 0), version=12)
        partition.log.roll()
        partition.log.apply_retention(now_ms)
    cleaner = Cleaner(broker.world, broker.storage.log_dirs, lambda: broker.config)
    while await cleaner.clean_dirtiest():
        cleaned += 1
    await broker.storage.log_dirs.checkpoint()
    assert not node.failed.done()
    return cleaned


async def tried(node: Node, kind: int, name: str, value: str) -> int | None:
    """Set a value, let the node work, and remove the value. Return how many logs were cleaned, or None if the value was
    refused."""
    resource = "compacted" if kind == TOPIC else ""
    taken_away = change(kind, resource, name, AlterOp.DELETE)
    if kind == BROKER and name == "min.insync.replicas":
        taken_away = change(kind, resource, name, value="1")  # with eligible leader replicas it is always set
    if kind == TOPIC and name in OWN:
        taken_away = change(kind, resource, name, value=OWN[name])
    async with dialled(node) as peer:
        if await code(peer, change(kind, resource, name, value=value)):
            return None
        working = asyncio.ensure_future(work(node))
        await asyncio.wait([working], timeout=PATIENCE_S)
        if not working.done():
            assert await code(peer, taken_away) == 0
        cleaned = await working
        assert await code(peer, taken_away) == 0
        return cleaned


async def try_all(directory: Path, settings: list[tuple[int, str]]) -> dict[str, int]:
    """Try all values of each setting, and start the node once with the last accepted value. Return how many logs were
    cleaned for each setting."""
    cleaned = dict.fromkeys((name for _, name in settings), 0)
    async with serving(directory, OFF) as node, dialled(node) as peer:
        await make(peer, "compacted", configs=OWN)
        await make(peer, "retained", configs={"retention.ms": "1"})
    for kind, name in settings:
        values = [value for value in values_of(KEYS[kind][name]) if len(value) < 30_000]
        async with serving(directory, OFF) as node:
            taken = []
            for value in values:
                found = await tried(node, kind, name, value)
                if found is not None:
                    cleaned[name] += found
                    taken.append(value)
            async with dialled(node) as peer:
                resource = "compacted" if kind == TOPIC else ""
                assert await code(peer, change(kind, resource, name, value=taken[-1])) == 0
        async with serving(directory, OFF) as node:
            assert await tried(node, kind, name, taken[-1]) is not None
    return cleaned


def test_the_cleaner_works_under_every_accepted_value(tmp_path: Path) -> None:
    cleaned = asyncio.run(asyncio.wait_for(try_all(tmp_path / "data", CHOSEN), 60))
    assert all(cleaned.values()), cleaned


@pytest.mark.slow
def test_a_node_works_under_every_accepted_value(tmp_path: Path) -> None:
    cleaned = asyncio.run(asyncio.wait_for(try_all(tmp_path / "data", ALL), 600))
    assert sum(map(bool, cleaned.values())) > len(ALL) // 2, cleaned


@pytest.mark.parametrize("key", ["producer_byte_rate", "consumer_byte_rate", "request_percentage"])
@pytest.mark.parametrize("value", [5e-324, 1.0, 1e308])
def test_clients_are_answered_under_every_accepted_quota(tmp_path: Path, key: str, value: float) -> None:
    """With the smallest quotas, clients receive one response and then have to wait."""

    async def play() -> None:
        async with serving(tmp_path / "data", OFF) as node:
            async with dialled(node) as peer:
                await make(peer, "t")
                told = await peer.ask("AlterClientQuotas", quotas.Request(entries=[entry(EVERYBODY, key, value)]))
                assert told.entries[0].error_code in (0, 42)
            for name, request in (("Produce", produced("t", b"x")), ("Fetch", fetched("t", 0))):
                async with dialled(node) as peer:
                    await peer.ask(name, request, version=9)
            assert not node.failed.done()

    asyncio.run(asyncio.wait_for(play(), 60))
