"""If the last steps of a move between log.dirs fail, all acknowledged records exist after the next start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.storage.dirs.log_dirs import LogDirectories
from kpybroker.wire.rpc import delete_topics
from tests.asking import make, put
from tests.server.test_log_dirs import all_are_there, dirs, move, places, throttle, told, until_at, until_copied
from tests.serving import crashed, dialled, serving

COUNT = 30


def log_dirs_of(node: Node) -> LogDirectories:
    assert node.broker.storage.log_dirs is not None
    return node.broker.storage.log_dirs


async def begun(node: Node, peer: Peer, target: Path) -> str:
    """Begin to move a partition from a directory without the metadata log. Return the directory name of the future
    replica."""
    await throttle(peer, 1)
    await make(peer, "other")  # created in a, which also contains the metadata log
    await make(peer, "t")
    assert places(node) == {"other-0": "a", "t-0": "b"}
    for number in range(COUNT):
        assert (await put(peer, "t", b"%d" % number + bytes(50_000))).base_offset == number
    await told(node, "t")
    assert await move(peer, "t", target, 0) == [0]
    await until_copied(node)
    found = log_dirs_of(node).by_path(str(target))
    assert found is not None
    return found.futures["t", 0]


async def until_offline(node: Node, path: Path) -> None:
    for _ in range(1000):
        if str(path) in log_dirs_of(node).offline:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{path} is online")


async def until_nobody_leads(node: Node) -> None:
    for _ in range(1000):
        if node.broker.metadata.image.topics["t"].partitions[0].leader == -1:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the controller assumes that the replica is served")


def block(path: Path) -> None:
    """Make every rename to this directory fail."""
    (path / "in the way").mkdir(parents=True)


def clear(path: Path) -> None:
    (path / "in the way").rmdir()
    path.rmdir()


def test_a_topic_in_the_middle_of_a_move_is_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        target = tmp_path / "c"
        async with serving(tmp_path, dirs(tmp_path, "a", "b", "c")) as node, dialled(node) as peer:
            await begun(node, peer, target)
            block(target / "t-0")
            await throttle(peer, 1 << 40)
            await until_offline(node, target)
            asked = delete_topics.Request(topics=[delete_topics.DeleteTopicState(name="t")], timeout_ms=5000)
            assert (await peer.ask("DeleteTopics", asked)).responses[0].error_code == 0
            clear(target / "t-0")
        assert "cannot be deleted" not in caplog.text
        async with serving(tmp_path, dirs(tmp_path, "a", "b", "c")) as node, dialled(node) as peer:
            assert places(node) == {"other-0": "a"}
            assert len(list(tmp_path.glob("c/t-0*-stray"))) == 1
            await make(peer, "t")
            assert (await put(peer, "t", b"x")).base_offset == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("failing", ["source", "target"])
def test_a_failing_rename(tmp_path: Path, failing: str) -> None:
    settings = dirs(tmp_path, "a", "b", "c")
    source, target = tmp_path / "b", tmp_path / "c"
    in_the_way = target / "t-0"

    async def scenario() -> None:
        nonlocal in_the_way
        async with serving(tmp_path, settings) as node, dialled(node) as peer:
            future = await begun(node, peer, target)
            if failing == "source":
                in_the_way = source / future.replace("-future", "-delete")
            block(in_the_way)
            await throttle(peer, 1 << 40)
            await until_offline(node, source if failing == "source" else target)
            await until_nobody_leads(node)
            assert (await put(peer, "t", b"x")).error_code != ErrorCode.NONE
            log_dirs = log_dirs_of(node)
            assert not list(node.broker.replication.replicas.moves)
            assert not any(len(directory.garbage) for directory in log_dirs.online)
            clear(in_the_way)
            copy = crashed(tmp_path, tmp_path.with_name(f"{tmp_path.name}-crashed"))
            block(in_the_way)
        clear(in_the_way)
        for root in (tmp_path, copy):
            async with serving(root, dirs(root, "a", "b", "c"), 3) as node, dialled(node) as peer:
                await throttle(peer, 1 << 40)
                await until_at(node, "t-0", "c")
                await told(node, "t")
                await all_are_there(peer, COUNT)
                assert (await put(peer, "t", b"on")).base_offset == COUNT

    asyncio.run(scenario())
