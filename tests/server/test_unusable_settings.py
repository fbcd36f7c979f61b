"""If the metadata contains settings and quotas that cannot be applied, nodes still start and serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from kpybroker.config.dynamic import why_unusable
from kpybroker.config.effect import BROKER, KEYS
from kpybroker.controller.commands import AlterOp
from kpybroker.groups.consumer.transitions import Transitions
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.timers import Timers
from kpybroker.machine.contract import Stored
from kpybroker.metadata.image import Image
from kpybroker.metadata.quotas import CLIENT_ID, IP, USER, record_of
from kpybroker.server.node import Node
from kpybroker.wire.rpc import incremental_alter_configs as rpc
from kpybroker.wire.stored.metadata import ConfigRecord
from tests.asking import make, put
from tests.boundaries import values_of
from tests.handlers.test_incremental_alter_configs import change, code
from tests.serving import dialled, serving

NAMES = {2: "t", 4: "", 16: "m", 32: "g"}
QUOTAS = {
    USER: ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"),
    CLIENT_ID: ("unknown_rate",),
    IP: ("connection_creation_rate",),
}


def poison(random: Random) -> Iterator[ConfigRecord]:
    """An inapplicable value for every setting for which one exists."""
    for kind, keys in KEYS.items():
        for key in keys.values():
            bad = [value for value in values_of(key) if len(value) < 32_000 and why_unusable(kind, key.name, value)]
            if bad:
                for name in {NAMES[kind], "1"} if kind == BROKER else {NAMES[kind]}:
                    value = random.choice(bad)
                    yield ConfigRecord(resource_type=kind, resource_name=name, name=key.name, value=value)
    yield ConfigRecord(resource_type=99, resource_name="x", name="unknown", value="1")
    yield ConfigRecord(resource_type=4, resource_name="no number", name="log.retention.ms", value="abc")


async def commit(node: Node, records: list[object]) -> None:
    """Write metadata records that no controller would write. Return once they have been applied."""
    quorum = node.broker.quorum
    quorum.append([Stored(None, None, message=record) for record in records])
    await quorum.settle()


async def serves(node: Node) -> None:
    async with dialled(node) as peer:
        told = await put(peer, "t", b"x")
        assert told.error_code == 0
    assert not node.failed.done()


@pytest.mark.slow
def test_a_node_follows_and_starts_on_settings_that_cannot_be_applied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        async with serving(tmp_path / "data") as node:
            async with dialled(node) as peer:
                await make(peer, "t")
            before = node.broker.config
            for seed in range(3):
                await commit(node, list(poison(Random(seed))))
                await serves(node)
            assert node.broker.config == before
            unusable = node.broker.metadata.dynamic.unusable_count
            assert unusable > 200
            name = "log.flush.interval.ms"
            assert f"the setting {name} of brokers (default) cannot be applied" in caplog.text
            assert f"--entity-type brokers --entity-default --delete-config {name}" in caplog.text
        async with serving(tmp_path / "data") as node:
            await serves(node)
            assert node.broker.metadata.dynamic.unusable_count == unusable
            await mend(node)
            assert node.broker.metadata.dynamic.unusable_count == 0
            await serves(node)

    caplog.set_level(logging.ERROR)
    asyncio.run(asyncio.wait_for(play(), 60))


async def mend(node: Node) -> None:
    """Remove settings, first one by one. Other inapplicable settings must not prevent that."""
    async with dialled(node) as peer:
        # eligible leader replicas are on: this one must be set
        assert await code(peer, change(BROKER, "", "min.insync.replicas", value="1")) == 0
        for (kind, name), settings in list(node.broker.metadata.image.configs.items()):
            if kind not in NAMES or name not in (NAMES[kind], "1"):
                continue
            left = sorted(settings.keys() - ({"min.insync.replicas"} if not name else set()))
            for setting in left[:3]:
                assert await code(peer, change(kind, name, setting, AlterOp.DELETE)) == 0
            request = change(kind, name, "", AlterOp.DELETE)
            request.resources[0].configs = [
                rpc.AlterableConfig(name=setting, config_operation=AlterOp.DELETE, value=None) for setting in left[3:]
            ]
            assert await code(peer, request) == 0


def test_the_last_good_value_stays_in_force(tmp_path: Path) -> None:
    async def play() -> None:
        async with serving(tmp_path / "data") as node:
            async with dialled(node) as peer:
                await make(peer, "t")
                for kind, name, setting in ((4, "", "log.retention.ms"), (2, "t", "segment.ms")):
                    await peer.ask("IncrementalAlterConfigs", change(kind, name, setting, value="1234567"))
            for kind, name, setting in ((4, "", "log.retention.ms"), (2, "t", "segment.ms")):
                for bad in ("abc", "1e3"):
                    await commit(node, [ConfigRecord(resource_type=kind, resource_name=name, name=setting, value=bad)])
            settings = node.broker.replication.hosting.leads("t", 0).log.settings
            assert (settings.retention_ms, settings.segment_ms) == (1234567, 1234567)
            assert node.broker.metadata.image.config(2, "t")["segment.ms"] == "1e3"

    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_setting_of_one_broker_has_no_effect_on_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        async with serving(tmp_path / "data") as node:
            of_all, own = (
                ConfigRecord(resource_type=BROKER, resource_name=name, name="cordoned.log.dirs", value="*")
                for name in ("", "1")
            )
            await commit(node, [of_all])
            assert not node.broker.config.cordoned_log_dirs
            assert node.broker.metadata.dynamic.unusable_count == 1
            await commit(node, [own])
            assert node.broker.config.cordoned_log_dirs == {str(tmp_path / "data")}

    caplog.set_level(logging.ERROR)
    asyncio.run(asyncio.wait_for(play(), 60))
    reason = "the setting cordoned.log.dirs of brokers (default) cannot be applied: only a single broker can have"
    assert caplog.text.count(reason) == 1


def test_quotas_that_cannot_be_applied_limit_nobody(tmp_path: Path) -> None:
    async def play() -> None:
        async with serving(tmp_path / "data") as node:
            async with dialled(node) as peer:
                await make(peer, "t")
            for value in (float("nan"), -1.0, 0.0, float("-inf")):
                records = [record_of(((kind, None),), key, value) for kind, keys in QUOTAS.items() for key in keys]
                await commit(node, list(records))
                assert node.broker.metadata.dynamic.unusable_count == 6
                await serves(node)
        async with serving(tmp_path / "data") as node:
            assert node.broker.metadata.dynamic.unusable_count == 6
            await serves(node)

    asyncio.run(asyncio.wait_for(play(), 60))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max.connections", "0"),
        ("max.connections", "1"),
        ("max.connection.creation.rate", "0"),
        ("max.connections.per.ip", "1"),
        ("max.connections.per.ip.overrides", "127.0.0.1:0"),
        ("max.connections.per.ip.overrides", "localhost:1"),
        ("listener.name.plaintext.max.connections", "0"),
    ],
)
def test_no_client_can_shut_itself_out(tmp_path: Path, setting: str, value: str) -> None:
    async def play() -> None:
        async with serving(tmp_path / "data") as node:
            for name in ("", "1"):
                async with dialled(node) as peer:
                    told: rpc.Response = await peer.ask(
                        "IncrementalAlterConfigs", change(BROKER, name, setting, value=value)
                    )
                    assert told.responses[0].error_code == 42
                    assert setting.removeprefix("listener.name.plaintext.") in (told.responses[0].error_message or "")
            async with dialled(node) as peer:
                await make(peer, "t")

    asyncio.run(asyncio.wait_for(play(), 60))


@pytest.mark.parametrize("bad", ["abc", "0", "-1", "9" * 5000])
def test_an_inapplicable_group_setting_counts_as_not_set(bad: str) -> None:
    name = "consumer.session.timeout.ms"
    record = ConfigRecord(resource_type=32, resource_name="g", name=name, value=bad)
    image = Image().apply([record], 0, 1)
    steps = Transitions(GroupSettings(), Timers(), lambda: image, lambda group, step: False)
    assert steps.session_timeout_ms("g") == GroupSettings().consumer_session_timeout_ms
