"""Several log.dirs on real nodes: where partitions are put and found again, and what one lost directory takes away."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from kpybroker.errors import ConfigError, ErrorCode
from kpybroker.peer import Peer
from kpybroker.server.node import Node
from kpybroker.wire.rpc import describe_log_dirs
from tests.asking import get, make, put
from tests.server.clustering import Cluster, run_cluster
from tests.server.clustering import dialled as dial
from tests.server.test_lost_disk import fill_up, hosted
from tests.serving import crashed, dialled, serving


def dirs(root: Path, *names: str, **more: str) -> dict[str, str]:
    return {"log.dirs": ",".join(str(root / name) for name in names), **more}


def places(node: Node) -> dict[str, str]:
    """The name of the directory that each partition is in."""
    found = {}
    for partition in node.broker.hosting:
        directory = node.broker.log_dirs.of(partition.log)
        if directory is not None:
            found[f"{partition.topic}-{partition.index}"] = Path(directory.path).name
    return found


def said(node: Node, topic: str) -> dict[str, str]:
    """The same, as the metadata says it."""
    names = {directory.id: Path(directory.path).name for directory in node.broker.log_dirs.online}
    image = node.broker.image.topics[topic]
    return {
        f"{topic}-{index}": names.get(each.directories[0], str(each.directories[0]))
        for index, each in enumerate(image.partitions)
    }


async def told(node: Node, topic: str) -> None:
    """Until the controller knows where everything is."""
    for _ in range(500):
        if said(node, topic) == {name: at for name, at in places(node).items() if name.startswith(f"{topic}-")}:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{said(node, topic)} is said, and {places(node)} is so")


def test_partitions_are_spread_and_found_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, dirs(tmp_path, "a", "b")) as node, dialled(node) as peer:
            await make(peer, "t", 4)
            before = places(node)
            assert sorted(before.values()) == ["a", "a", "b", "b"]
            for index in range(4):
                assert (await put(peer, "t", b"kept", index=index)).error_code == 0
            await told(node, "t")
            ids = {each.id for each in node.broker.log_dirs.online}
            assert set(node.broker.image.brokers[node.broker.node_id].log_dirs) == ids
            assert len(ids) == 2
        # a third one is formatted, and takes what is new; the order does not matter where the metadata is named
        more = dirs(tmp_path, "c", "b", "a", **{"metadata.log.dir": str(tmp_path / "a")})
        async with serving(tmp_path, more) as node, dialled(node) as peer:
            assert places(node) == before
            assert b"kept" in bytes((await get(peer, "t", 0)).records)
            await make(peer, "new", 2)
            assert {places(node)["new-0"], places(node)["new-1"]} == {"c"}
            await told(node, "new")
        copy = crashed(tmp_path, tmp_path.parent / "crashed")
        assert (copy / "c" / "meta.properties").exists()

    asyncio.run(scenario())


def test_the_metadata_may_have_a_directory_of_its_own(tmp_path: Path) -> None:
    settings = dirs(tmp_path, "a", "b", **{"metadata.log.dir": str(tmp_path / "m")})

    async def scenario() -> None:
        for _ in range(2):
            async with serving(tmp_path, settings) as node, dialled(node) as peer:
                if "t" not in node.broker.image.topics:
                    await make(peer, "t", 2)
                assert (await put(peer, "t", b"x")).error_code == 0
                assert len(node.broker.image.brokers[node.broker.node_id].log_dirs) == 2
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
        for _ in range(2):  # nothing was touched: the second time finds what the first one found
            with pytest.raises(ConfigError, match=r"t-0 is in both .*/a and .*/b"):
                async with serving(tmp_path, dirs(tmp_path, "a", "b")):
                    pass
        shutil.rmtree(tmp_path / "b" / "t-0")
        async with serving(tmp_path, dirs(tmp_path, "a", "b", "a")) as node, dialled(node) as peer:
            assert node.broker.log_dirs.clean
            assert b"x" in bytes((await get(peer, "t", 0)).records)

    asyncio.run(scenario())


async def described(peer: Peer) -> dict[str, int]:
    reply = await peer.ask("DescribeLogDirs", describe_log_dirs.Request(topics=None))
    return {Path(each.log_dir).name: each.error_code for each in reply.results}


def test_the_rest_is_served_where_a_directory_cannot_be_used_at_the_start(tmp_path: Path) -> None:
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
            assert node.broker.image.topics["t"].partitions[lost].leader == -1
        (tmp_path / "b").unlink()
        (tmp_path / "saved").rename(tmp_path / "b")
        async with serving(tmp_path, dirs(tmp_path, "a", "b"), 3) as node, dialled(node) as peer:
            assert await described(peer) == {"a": 0, "b": 0}
            assert (await put(peer, "t", b"again", index=lost)).base_offset == 1

    asyncio.run(scenario())


def test_one_of_two_directories_fails_and_the_other_serves_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, dirs(tmp_path, "a", "b")) as node, dialled(node) as peer:
            await make(peer, "t", 2)
            for index in range(2):
                assert (await put(peer, "t", b"before", index=index)).error_code == 0
            await told(node, "t")
            lost = int(next(name for name, at in places(node).items() if at == "b").rpartition("-")[2])
            partition = node.broker.hosting.find("t", lost)
            assert partition is not None
            fill_up(partition)
            assert (await put(peer, "t", b"x", index=lost)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert (await put(peer, "t", b"y", index=1 - lost)).error_code == 0
            assert await described(peer) == {"a": 0, "b": ErrorCode.KAFKA_STORAGE_ERROR}
            for _ in range(500):
                if node.broker.image.topics["t"].partitions[lost].leader == -1:
                    break
                await asyncio.sleep(0.01)
            else:
                raise AssertionError("the controller has not been told")
            assert len(node.broker.image.brokers[node.broker.node_id].log_dirs) == 1
            assert not node.failed.done()
            fill_up(next(each for each in node.broker.hosting if each.index == 1 - lost))
            assert (await put(peer, "t", b"z", index=1 - lost)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert str(tmp_path / "a") in await node.failed  # the metadata log is there
        async with serving(tmp_path, dirs(tmp_path, "a", "b")) as node, dialled(node) as peer:
            assert b"before" in bytes((await get(peer, "t", 0)).records)

    asyncio.run(scenario())


def test_others_lead_what_was_in_a_failed_directory(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        cluster.directories = ("a", "b")
        await cluster.start(1, 2, 3)
        peer = await dial(cluster.nodes[await cluster.leader()])
        for topic in ("in-a", "in-b"):
            await make(peer, topic, replicas=3)
        peer.close()
        leads = hosted(cluster.nodes[1], "in-b").leader_id
        lost = cluster.nodes[leads]
        assert places(lost) == {"in-a-0": "a", "in-b-0": "b"}
        for topic in ("in-a", "in-b"):
            partition = hosted(cluster.nodes[hosted(lost, topic).leader_id], topic)
            await cluster.until(lambda of=partition: len(of.isr) == 3, "all are in sync")  # type: ignore[misc]
        peer = await dial(lost)
        assert (await put(peer, "in-b", b"kept", acks=-1)).error_code == 0
        fill_up(hosted(lost, "in-b"))
        assert (await put(peer, "in-b", b"refused", acks=-1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        peer.close()
        rest = [node for node_id, node in cluster.nodes.items() if node_id != leads]
        await cluster.until(
            lambda: any(hosted(node, "in-b").leads for node in rest) and leads not in hosted(rest[0], "in-b").isr,
            "another one leads",
        )
        assert leads in hosted(rest[0], "in-a").isr
        assert not lost.failed.done()
        peer = await dial(next(node for node in rest if hosted(node, "in-b").leads))
        assert b"kept" in bytes((await get(peer, "in-b", 0)).records)
        peer.close()
        await cluster.stop(leads)
        await cluster.start(leads)  # with the device in order again
        await cluster.until(lambda: leads in hosted(rest[0], "in-b").isr, "it is in sync again")
        assert places(cluster.nodes[leads]) == {"in-a-0": "a", "in-b-0": "b"}

    run_cluster(tmp_path, play)
