"""After flush.messages or flush.ms was set on a running node, all acknowledged records are on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kpybroker.wire.rpc import incremental_alter_configs as rpc
from tests.asking import make, put
from tests.handlers.test_incremental_alter_configs import change, code
from tests.serving import dialled, serving

TOPIC, BROKER = 2, 4


@pytest.mark.parametrize(
    ("kind", "name", "setting"), [(TOPIC, "t", "flush.messages"), (BROKER, "", "log.flush.interval.ms")]
)
def test_records_from_before_the_change_are_synced_too(tmp_path: Path, kind: int, name: str, setting: str) -> None:
    """Otherwise a Produce that waits for followers at that moment would have to wait for the next Produce."""

    async def play() -> None:
        async with serving(tmp_path / "data") as node, dialled(node) as peer:
            await make(peer, "t")
            assert (await put(peer, "t", b"x")).error_code == 0
            partition = node.broker.replication.hosting.leads("t", 0)
            assert partition.log.synced_end < partition.log.written_end == 1
            assert await code(peer, change(kind, name, setting, value="1")) == 0
            while partition.log.synced_end < 1:  # the sync runs on a thread
                await asyncio.sleep(0)
            assert (await put(peer, "t", b"y")).error_code == 0
            assert partition.log.synced_end == partition.committable_end == 2

    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_change_that_would_protect_nothing_is_refused(tmp_path: Path) -> None:
    async def play() -> None:
        async with serving(tmp_path / "data") as node, dialled(node) as peer:
            for name, setting, value in (
                ("1", "listener.name.plaintext.ssl.client.auth", "required"),
                ("1", "listener.name.plaintext.plain.sasl.jaas.config", "hush"),
                ("1", "sasl.enabled.mechanisms", "PLAIN"),
                ("", "config.providers", "file"),
            ):
                told: rpc.Response = await peer.ask(
                    "IncrementalAlterConfigs", change(BROKER, name, setting, value=value)
                )
                assert told.responses[0].error_code == 42
                assert f"{setting.rpartition('plain.')[-1].removeprefix('listener.name.plaintext.')}=" in (
                    told.responses[0].error_message or ""
                )
                assert "hush" not in (told.responses[0].error_message or "")
            assert not node.broker.metadata.image.config(BROKER, "1")

    asyncio.run(asyncio.wait_for(play(), 60))
