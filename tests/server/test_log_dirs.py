"""Several log.dirs on real nodes: the directories of new and existing partitions, and the effect of a lost
directory."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from kpybroker.client.peer import Peer
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.commands import AlterOp
from kpybroker.errors import ConfigError, ErrorCode
from kpybroker.server.node import Node
from kpybroker.storage.files.checkpoint_files import write_topic_id
from kpybroker.wire.records.batch import split
from kpybroker.wire.rpc import alter_replica_log_dirs, delete_topics, describe_log_dirs, incremental_alter_configs
from kpybroker.world.real import RealDisk
from tests.asking import get, make, put
from tests.handlers.test_incremental_alter_configs import change, code
from tests.serving import crashed, dialled, serving

pytestmark = pytest.mark.slow


def dirs(root: Path, *names: str, **more: str) -> dict[str, str]:
    return {"log.dirs": ",".join(str(root / name) for name in names), **more}


def places(node: Node) -> dict[str, str]:
    """The name of the log directory of each partition."""
    found = {}
    for partition in node.broker.replication.hosting:
        directory = node.broker.storage.log_dirs.of(partition.log)
        if directory is not None:
            found[f"{partition.topic}-{partition.index}"] = Path(directory.path).name
    return found


def said(node: Node, topic: str) -> dict[str, str]:
    """The name of the log directory of each partition according to the metadata."""
    names = {directory.id: Path(directory.path).name for directory in node.broker.storage.log_dirs.online}
    image = node.broker.metadata.image.topics[topic]
    return {
        f"{topic}-{index}": names.get(each.directories[0], str(each.directories[0]))
        for index, each in enumerate(image.partitions)
    }


async def told(node: Node, topic: str) -> None:
    """Wait until the metadata contains the actual log directory of every partition."""
    for _ in range(500):
        if said(node, topic) == {name: at for name, at in places(node).items() if name.startswith(f"{topic}-")}:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"the metadata has {said(node, topic)} instead of {places(node)}")


def test_partitions_are_spread_and_found_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, dirs(tmp_path, "a", "b")) as node, dialled(node) as peer:
            await make(peer, "t", 4)
            before = places(node)
            assert sorted(before.values()) == ["a", "a", "b", "b"]
            for index in range(4):
                assert (await put(peer, "t", b"kept", index=index)).error_code == 0
            await told(node, "t")
            ids = {each.id for each in node.broker.storage.log_dirs.online}
            assert set(node.broker.metadata.image.brokers[node.broker.node_id].log_dirs) == ids
            assert len(ids) == 2
        # a third one is formatted and gets new partitions; if the metadata's is named, any order will do
        more = dirs(tmp_path, "c", "b", "a", **{"metadata.log.dir": str(tmp_path / "a")})
        async with serving(tmp_path, more) as node, dialled(node) as peer:
            assert places(node) == before
            assert b"kept" in bytes((await get(peer, "t", 0)).records)
            await make(peer, "new", 2)
            assert {places(node)["new-0"], places(node)["new-1"]} == {"c"}
            await told(node, "new")
        copy = crashed(tmp_path, tmp_path.with_name(f"{tmp_path.name}-crashed"))
        assert (copy / "c" / "meta.properties").exists()

    asyncio.run(scenario())


def test_a_cordoned_directory_is_not_chosen(tmp_path: Path) -> None:
    """From the start, and from the change on (KIP-1066), although the other one has more partitions."""

    async def scenario() -> None:
        cordoned = {"cordoned.log.dirs": str(tmp_path / "a")}
        async with serving(tmp_path, dirs(tmp_path, "a", "b", **cordoned)) as node, dialled(node) as peer:
            await make(peer, "t", 4)
            assert set(places(node).values()) == {"b"}
            request = change(ResourceType.BROKER, "1", "cordoned.log.dirs", value=str(tmp_path / "b"))
            assert await code(peer, request) == 0
            await make(peer, "u", 8)
            assert {at for name, at in places(node).items() if name.startswith("u-")} == {"a"}

    asyncio.run(scenario())


def test_the_metadata_may_have_its_own_directory(tmp_path: Path) -> None:
    settings = dirs(tmp_path, "a", "b", **{"metadata.log.dir": str(tmp_path / "m")})

    async def scenario() -> None:
        for _ in range(2):
            async with serving(tmp_path, settings) as node, dialled(node) as peer:
                if "t" not in node.broker.metadata.image.topics:
                    await make(peer, "t", 2)
                assert (await put(peer, "t", b"x")).error_code == 0
                assert len(node.broker.metadata.image.brokers[node.broker.node_id].log_dirs) == 2
        assert (tmp_path / "m" / "__cluster_metadata-0").is_dir()
        assert not (tmp_path / "a" / "__cluster_metadata-0").exists()
        assert not (tmp_path / "m" / "t-0").exists()
        with pytest.raises(ConfigError, match=r"/m .*metadata.log.dir|metadata log belongs|has a metadata log"):
            async with serving(tmp_path, dirs(tmp_path, "a", "m")):
                pass

    asyncio.run(scenario())


def test_a_partition_in_two_directories_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, dirs(tmp_path, "a", "b")) as node, dialled(node) as peer:
            await make(peer, "t")
            await put(peer, "t", b"x")
        shutil.copytree(tmp_path / "a" / "t-0", tmp_path / "b" / "t-0")
        for _ in range(2):  # the second attempt shows that the first changed nothing
            with pytest.raises(ConfigError, match=r"t-0 is in both .*/a and .*/b"):
                async with serving(tmp_path, dirs(tmp_path, "a", "b")):
                    pass
        shutil.rmtree(tmp_path / "b" / "t-0")
        async with serving(tmp_path, dirs(tmp_path, "a", "b", "a")) as node, dialled(node) as peer:
            assert node.broker.storage.log_dirs.clean
            assert b"x" in bytes((await get(peer, "t", 0)).records)

    asyncio.run(scenario())


@pytest.mark.parametrize("stale", ["a", "b"])
@pytest.mark.parametrize("lost", ["", "a", "b"])
def test_the_log_of_a_recreated_topics_predecessor_is_set_aside(tmp_path: Path, stale: str, lost: str) -> None:
    """The old log exists because its directory was offline when the topic was deleted, or because a power failure undid
    the deletion. The power failure may also have removed the topic id in one of the directories."""

    async def scenario() -> None:
        async with serving(tmp_path, dirs(tmp_path, "a", "b")) as node, dialled(node) as peer:
            await make(peer, "t")
            await put(peer, "t", b"x")
        shutil.copytree(tmp_path / "a" / "t-0", tmp_path / "b" / "t-0")
        write_topic_id(RealDisk(), str(tmp_path / stale / "t-0"), bytes(range(16)))
        if lost:
            (tmp_path / lost / "t-0" / "partition.metadata").unlink()
        for _ in range(2):
            async with serving(tmp_path, dirs(tmp_path, "a", "b")) as node, dialled(node) as peer:
                assert b"x" in bytes((await get(peer, "t", 0)).records)
                assert (await put(peer, "t", b"y")).error_code == 0
            (left,) = (tmp_path / stale).glob("t-0*")
            assert left.name.endswith("-stray")

    asyncio.run(scenario())


async def described(peer: Peer) -> dict[str, int]:
    reply = await peer.ask("DescribeLogDirs", describe_log_dirs.Request(topics=None))
    return {Path(each.log_dir).name: each.error_code for each in reply.results}


def test_other_directories_are_served_if_one_cannot_be_used_at_the_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, dirs(tmp_path, "a", "b"), 1) as node, dialled(node) as peer:
            await make(peer, "t", 2)
            for index in range(2):
                await put(peer, "t", b"kept", index=index)
            await told(node, "t")
            lost = int(next(name for name, at in places(node).items() if at == "b").rpartition("-")[2])
        (tmp_path / "b").rename(tmp_path / "saved")
        (tmp_path / "b").write_text("no directory")
        async with serving(tmp_path, dirs(tmp_path, "a", "b"), 2) as node, dialled(node) as peer:
            assert await described(peer) == {"a": 0, "b": ErrorCode.KAFKA_STORAGE_ERROR}
            assert (await put(peer, "t", b"served", index=1 - lost)).error_code == 0
            assert (await put(peer, "t", b"x", index=lost)).error_code in (
                ErrorCode.KAFKA_STORAGE_ERROR,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
            )
            await make(peer, "new", 2)
            assert {places(node)["new-0"], places(node)["new-1"]} == {"a"}
            assert node.broker.metadata.image.topics["t"].partitions[lost].leader == -1
        (tmp_path / "b").unlink()
        (tmp_path / "saved").rename(tmp_path / "b")
        async with serving(tmp_path, dirs(tmp_path, "a", "b"), 3) as node, dialled(node) as peer:
            assert await described(peer) == {"a": 0, "b": 0}
            assert (await put(peer, "t", b"again", index=lost)).base_offset == 1

    asyncio.run(scenario())


async def move(peer: Peer, topic: str, path: Path, *indexes: int) -> list[int]:
    """Send AlterReplicaLogDirs, and return the error codes."""
    rpc = alter_replica_log_dirs
    named = rpc.AlterReplicaLogDirTopic(name=topic, partitions=list(indexes))
    asked = rpc.Request(dirs=[rpc.AlterReplicaLogDir(path=str(path), topics=[named])])
    told = await peer.ask("AlterReplicaLogDirs", asked)
    return [row.error_code for row in told.results[0].partitions]


async def until_at(node: Node, name: str, directory: str) -> None:
    for _ in range(1000):
        if places(node)[name] == directory:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{name} is not in {directory} but in {places(node)[name]}")


def test_a_replica_moves_while_it_is_written_to(tmp_path: Path) -> None:
    settings = dirs(tmp_path, "a", "b")

    async def scenario() -> None:
        async with serving(tmp_path, settings) as node, dialled(node) as peer:
            await make(peer, "t", configs={"segment.bytes": str(1 << 20)})
            assert places(node) == {"t-0": "a"}
            for number in range(40):
                assert (await put(peer, "t", b"%d" % number + bytes(100_000))).base_offset == number
            assert await move(peer, "t", tmp_path / "b", 0) == [0]
            number = 40
            while places(node)["t-0"] == "a" or number < 60:
                assert (await put(peer, "t", b"%d" % number)).base_offset == number
                number += 1
                assert number < 20_000, "it never catches up"
            await told(node, "t")
            assert not list((tmp_path / "a").glob("t-0"))
            assert (tmp_path / "b" / "t-0").is_dir()
            assert not list((tmp_path / "b").glob("*-future"))
            assert node.broker.storage.log_dirs.by_path(str(tmp_path / "a")).futures == {}  # type: ignore[union-attr]
            await all_are_there(peer, number)
            assert await move(peer, "t", tmp_path / "a", 0) == [0]  # and back
            await until_at(node, "t-0", "a")
            assert (await put(peer, "t", b"%d" % number)).base_offset == number
            copy = crashed(tmp_path, tmp_path.with_name(f"{tmp_path.name}-crashed"))
        for root in (tmp_path, copy):
            async with serving(root, dirs(root, "a", "b"), 2) as node, dialled(node) as peer:
                assert places(node) == {"t-0": "a"}
                await all_are_there(peer, number + 1)

    asyncio.run(scenario())


def test_an_acknowledged_move_is_remembered(tmp_path: Path) -> None:
    """The move continues after a restart even if no records were copied before the broker was killed."""

    async def scenario() -> None:
        async with serving(tmp_path, dirs(tmp_path, "a", "b")) as node, dialled(node) as peer:
            await make(peer, "t")
            await put(peer, "t", b"x")
            node.broker.replication.replicas.moves.alter("t", 0, str(tmp_path / "b"))
            copy = crashed(tmp_path, tmp_path.with_name(f"{tmp_path.name}-crashed"))
        async with serving(copy, dirs(copy, "a", "b")) as node, dialled(node) as peer:
            await until_at(node, "t-0", "b")
            await all_are_there(peer, 1)

    asyncio.run(scenario())


async def all_are_there(peer: Peer, count: int) -> None:
    offset = 0
    while offset < count:
        for batch in split(memoryview(bytearray((await get(peer, "t", offset)).records))):
            assert (batch.base_offset, batch.crc_ok()) == (offset, True)
            offset = batch.next_offset
    assert offset == count


def test_a_move_is_throttled_cancelled_and_continued_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, dirs(tmp_path, "a", "b")) as node, dialled(node) as peer:
            await throttle(peer, 1)
            await make(peer, "t")
            for number in range(30):
                assert (await put(peer, "t", b"%d" % number + bytes(100_000))).base_offset == number
            for is_called_off in (True, False):
                assert await move(peer, "t", tmp_path / "b", 0) == [0]
                await until_copied(node)
                (future,) = [row for row in await rows(peer, "b") if row.is_future_key]
                assert 0 < future.offset_lag < 30
                assert future.partition_size > 0
                if is_called_off:
                    assert await move(peer, "t", tmp_path / "a", 0) == [0]  # a move to the current directory cancels
                    assert not list(node.broker.replication.replicas.moves)
                    assert await rows(peer, "b") == []
                    await throttle(peer, 1 << 40)  # the time that has passed pays off the debt
                    while node.broker.replication.hosting.moving_throttle.must_wait:
                        await asyncio.sleep(0.001)
                    await throttle(peer, 1)
            copy = crashed(tmp_path, tmp_path.with_name(f"{tmp_path.name}-crashed"))
        for root in (tmp_path, copy):
            async with serving(root, dirs(root, "a", "b"), 2) as node, dialled(node) as peer:
                assert len(list(node.broker.replication.replicas.moves)) == 1
                await throttle(peer, 1 << 30)
                await until_at(node, "t-0", "b")
                await told(node, "t")
                await all_are_there(peer, 30)
                assert not list((root / "b").glob("*-future"))

    asyncio.run(scenario())


async def throttle(peer: Peer, rate: int) -> None:
    """Set the rate of moves between directories, in bytes per second."""
    rpc = incremental_alter_configs
    change = rpc.AlterableConfig(
        name="replica.alter.log.dirs.io.max.bytes.per.second", config_operation=AlterOp.SET, value=str(rate)
    )
    resource = rpc.AlterConfigsResource(resource_type=ResourceType.BROKER, resource_name="", configs=[change])
    told = await peer.ask("IncrementalAlterConfigs", rpc.Request(resources=[resource]))
    assert told.responses[0].error_code == 0, told.responses[0].error_message


async def until_copied(node: Node) -> None:
    for _ in range(1000):
        if any(move.future.end for move in node.broker.replication.replicas.moves):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nothing was copied")


async def rows(peer: Peer, directory: str) -> list[describe_log_dirs.DescribeLogDirsPartition]:
    reply = await peer.ask("DescribeLogDirs", describe_log_dirs.Request(topics=None))
    return [
        row
        for each in reply.results
        if Path(each.log_dir).name == directory
        for topic in each.topics
        for row in topic.partitions
    ]


def test_deleting_a_topic_deletes_its_future_replica(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, dirs(tmp_path, "a", "b")) as node, dialled(node) as peer:
            await throttle(peer, 1)
            await make(peer, "t")
            for number in range(20):
                assert (await put(peer, "t", b"%d" % number + bytes(100_000))).base_offset == number
            assert await move(peer, "t", tmp_path / "b", 0) == [0]
            await until_copied(node)
            asked = delete_topics.Request(topics=[delete_topics.DeleteTopicState(name="t")], timeout_ms=5000)
            assert (await peer.ask("DeleteTopics", asked)).responses[0].error_code == 0
            assert not list(tmp_path.glob("*/t-0"))
            assert not list(tmp_path.glob("*/*-future"))
            await make(peer, "t")
            assert (await put(peer, "t", b"new")).base_offset == 0

    asyncio.run(scenario())
