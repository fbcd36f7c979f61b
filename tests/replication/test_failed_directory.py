"""When a log directory or a disk fails, other brokers lead its partitions, and all other partitions are still
served."""

from __future__ import annotations

import pytest

from kpybroker.errors import ErrorCode
from kpybroker.server.metrics.endpoints import why_not_ready
from kpybroker.wire.rpc import describe_log_dirs
from tests.asking import produced
from tests.replication.virtual import VirtualCluster, play


def places(cluster: VirtualCluster, node_id: int) -> dict[str, str]:
    """The directory of each of a node's partitions."""
    broker = cluster.broker(node_id)
    found = {}
    for partition in broker.replication.hosting:
        directory = broker.storage.log_dirs.of(partition.log)
        if directory is not None:
            found[f"{partition.topic}-{partition.index}"] = directory.path
    return found


async def produce(cluster: VirtualCluster, node_id: int, topic: str, index: int = 0, acks: int = -1) -> int:
    """Produce to a node, without retries, and return the error code."""
    told = await (await cluster.client.peer(node_id)).ask(
        "Produce", produced(topic, b"x", acks=acks, index=index), version=12
    )
    return int(told.responses[0].partition_responses[0].error_code)


async def described(cluster: VirtualCluster, node_id: int) -> dict[str, int]:
    """The error code of each directory."""
    reply = await cluster.ask("DescribeLogDirs", describe_log_dirs.Request(topics=None), node_id)
    return {each.log_dir: each.error_code for each in reply.results}


@pytest.mark.parametrize("leads", [1, 2, 3])
def test_others_lead_the_partitions_of_a_failed_directory(leads: int) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        first, second = (node_id for node_id in (1, 2, 3) if node_id != leads)
        for topic in ("in-a", "in-b"):
            await cluster.create((leads, first, second), topic=topic, min_insync_replicas="2")
        assert places(cluster, leads) == {"in-a-0": "/a", "in-b-0": "/b"}
        lost = cluster.broker(leads)
        await cluster.put(b"kept", topic="in-b")
        cluster.machines[leads].storage.fail(1.0, below="/b")
        assert await produce(cluster, leads, "in-b") == ErrorCode.KAFKA_STORAGE_ERROR
        await cluster.until(
            lambda: cluster.image("in-b").leader in (first, second) and leads not in cluster.image("in-b").isr,
            "another one leads",
        )
        assert cluster.image("in-a").leader == leads
        assert leads in cluster.image("in-a").isr
        assert await described(cluster, leads) == {"/a": 0, "/b": ErrorCode.KAFKA_STORAGE_ERROR}
        assert (await cluster.values("in-b"))[0] == b"kept"
        await cluster.put(b"after", topic="in-a")
        assert cluster.broker(leads) is lost, "it serves on"
        await cluster.machines[leads].stop()
        cluster.machines[leads].mend()
        await cluster.start(leads)
        await cluster.until(lambda: leads in cluster.image("in-b").isr, "it is in sync again")
        assert places(cluster, leads) == {"in-a-0": "/a", "in-b-0": "/b"}
        assert await described(cluster, leads) == {"/a": 0, "/b": 0}

    play(scene, log_dirs="/a,/b")


def test_one_of_two_directories_fails_and_the_other_is_served() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1,), (1,))
        for index in range(2):
            await cluster.put(b"before", index=index)
        lost = int(next(name for name, at in places(cluster, 1).items() if at == "/b").rpartition("-")[2])
        cluster.machines[1].storage.fail(1.0, below="/b")
        assert await produce(cluster, 1, "t", lost) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await produce(cluster, 1, "t", 1 - lost) == 0
        assert await described(cluster, 1) == {"/a": 0, "/b": ErrorCode.KAFKA_STORAGE_ERROR}
        await cluster.until(lambda: cluster.image(index=lost).leader == -1, "the controller knows")
        assert len(cluster.broker(1).metadata.image.brokers[1].log_dirs) == 1
        broker, machine = cluster.broker(1), cluster.machines[1]
        assert not broker.background.failed.done()
        machine.stay_down()
        machine.storage.fail(1.0, below="/a")
        assert await produce(cluster, 1, "t", 1 - lost) == ErrorCode.KAFKA_STORAGE_ERROR
        why = await broker.background.failed
        assert "/a" in why, "the metadata log is in this directory"
        await cluster.until(lambda: machine.process is None, "it has ended")
        machine.mend()
        await cluster.start(1)
        for index in range(2):
            await cluster.until(lambda index=index: cluster.image(index=index).leader == 1, "it leads")  # type: ignore[misc]
            assert (await cluster.values(index=index))[0] == b"before"

    play(scene, 1, log_dirs="/a,/b")


@pytest.mark.parametrize("leads", [1, 2, 3])
def test_others_lead_the_partitions_of_a_failed_disk(leads: int) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        machine, lost = cluster.machines[leads], cluster.broker(leads)
        others = [node_id for node_id in (1, 2, 3) if node_id != leads]
        await cluster.create((leads, *others), min_insync_replicas="2")
        await cluster.put(b"kept")
        machine.stay_down()
        machine.storage.leave_free(0)
        assert await produce(cluster, leads, "t") == ErrorCode.KAFKA_STORAGE_ERROR
        why = await lost.background.failed
        assert "/data/t-0" in why
        assert "no space left on device" in why
        assert "t-0" in (why_not_ready(lost) or "")
        await cluster.until(
            lambda: cluster.image().leader in others and leads not in cluster.image().isr, "another one leads"
        )
        await cluster.put(b"after")
        values = await cluster.values()
        assert (values[0], values[-1]) == (b"kept", b"after")

    play(scene)
