"""Tests of a full disk: producers receive an error, other partitions are served, and acknowledged records can still be
read afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.wire.records.batch import read_records, split
from kpybroker.wire.rpc import metadata
from kpybroker.world.real import RealNetwork
from tests.asking import get, make, put
from tests.cli.shell import Shell, ready
from tests.cli.small_disk import SmallDisk, limited, may_mount, mounted

pytestmark = pytest.mark.slow

WAIT_S = 60
VALUE_BYTES = 50_000


def _ways() -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        return ["limited", "mounted"] if may_mount(Path(directory)) else ["limited"]


@contextlib.asynccontextmanager
async def broker_on(disk: SmallDisk, ends_with: signal.Signals) -> AsyncIterator[tuple[Peer, list[str]]]:
    """A broker as a child process, a connection to it, and a list for its final output."""
    said: list[str] = []
    settings = ["--set", "auto.create.topics.enable=false"]
    process = subprocess.Popen(
        [*disk.interpreter, "-m", "kpybroker", "dev", "--port", "0", "--data-dir", str(disk.path), *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        host, _, port = ready(process)["bootstrap"].rpartition(":")
        peer = await Peer.dial(RealNetwork(), host, int(port))
        await peer.negotiate()
        yield peer, said
        peer.close()
        process.send_signal(ends_with)
    except BaseException:
        process.kill()
        raise
    finally:
        said.append(process.communicate(timeout=WAIT_S)[1])
    assert process.returncode in (0, -signal.SIGKILL), said


async def values(peer: Peer, topic: str) -> list[bytes]:
    """All values that a consumer would read."""
    found: list[bytes] = []
    while True:
        told = await get(peer, topic, len(found))
        assert told.error_code == 0, told
        if not told.records:
            return found
        for batch in split(bytes(told.records)):
            found += [record.value or b"" for record in read_records(batch)]


@pytest.mark.parametrize("way", _ways())
@pytest.mark.parametrize("ends_with", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_a_full_disk(way: str, ends_with: signal.Signals, tmp_path: Path) -> None:
    async def whole(disk: SmallDisk) -> None:
        acknowledged: list[bytes] = []
        async with broker_on(disk, ends_with) as (peer, said):
            await make(peer, "filled")
            await make(peer, "other")
            assert (await put(peer, "other", b"before")).error_code == 0
            while True:
                value = b"%d " % len(acknowledged) + bytes(VALUE_BYTES)
                told = await put(peer, "filled", value, acks=-1)
                if told.error_code:
                    break
                assert told.base_offset == len(acknowledged)
                acknowledged.append(value)
            assert told.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert disk.why in told.error_message
            assert acknowledged, "there was room for some"
            again = await put(peer, "filled", b"x")
            assert (again.error_code, again.error_message) == (told.error_code, told.error_message)
            assert (await get(peer, "filled", 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert await values(peer, "other") == [b"before"], "other partitions are served"
            topics = (await peer.ask("Metadata", metadata.Request(topics=None))).topics
            assert {topic.name for topic in topics} == {"filled", "other"}
        assert any(disk.why in line for line in said[0].splitlines())
        assert "Traceback" not in said[0]
        disk.free()
        async with broker_on(disk, signal.SIGTERM) as (peer, said):
            assert await values(peer, "filled") == acknowledged
            assert await values(peer, "other") == [b"before"]
            assert (await put(peer, "filled", b"after")).base_offset == len(acknowledged)
        assert "Traceback" not in said[0]

    with {"limited": limited, "mounted": mounted}[way](tmp_path) as disk:
        asyncio.run(asyncio.wait_for(whole(disk), WAIT_S))


def test_a_partition_that_is_offline_because_of_a_full_disk_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata still names its leader, and only the leader knows that it is offline."""

    async def whole(disk: SmallDisk) -> None:
        async with broker_on(disk, signal.SIGTERM) as (peer, _):
            (node,) = (await peer.ask("Metadata", metadata.Request(topics=None))).brokers
            shell = Shell(f"{node.host}:{node.port}", monkeypatch)
            await make(peer, "filled")
            await make(peer, "other")
            assert "all replicas in sync" in (await asyncio.to_thread(shell, "status")).out
            while not (await put(peer, "filled", bytes(VALUE_BYTES))).error_code:
                pass
            told = (await asyncio.to_thread(shell, "status", "--json")).json
            assert (told["partitions"]["offline"], told["unknown"]) == (["filled-0"], {})
            shown = (await asyncio.to_thread(shell, "status")).out
            assert "1 offline (filled-0)" in shown
            assert "in sync" not in shown
            waited = await asyncio.to_thread(shell, "wait", "--in-sync", "--timeout", "0.1")
            assert (waited.code, "filled-0" in waited.err) == (1, True)
            (topic,) = (await asyncio.to_thread(shell, "topics", "describe", "filled", "--json")).json
            (row,) = topic["partitions"]
            assert (row["start"], row["end"]) == (None, None)
            assert "KAFKA_STORAGE_ERROR" in row["offline"]
            described = (await asyncio.to_thread(shell, "topics", "describe", "filled")).out
            assert "partition 0 is offline: its leader, node 1, cannot read or write its log" in described
            listed = (await asyncio.to_thread(shell, "topics", "list", "--json")).json
            assert {topic["topic"]: topic["records"] for topic in listed} == {"filled": None, "other": 0}

    with limited(tmp_path) as disk:
        asyncio.run(asyncio.wait_for(whole(disk), WAIT_S))
