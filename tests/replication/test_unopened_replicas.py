"""A replica that could not be opened, because there was no file descriptor left, counts as offline only while this
broker has it."""

from __future__ import annotations

import pytest

from kpybroker.errors import ErrorCode
from kpybroker.storage.dirs.log_dir import CLEAN_SHUTDOWN
from kpybroker.wire.rpc import alter_partition_reassignments, delete_topics
from tests.replication.virtual import VirtualCluster, play


async def call_off(cluster: VirtualCluster) -> ErrorCode:
    partition = alter_partition_reassignments.ReassignablePartition(partition_index=0, replicas=None)
    topic = alter_partition_reassignments.ReassignableTopic(name="t", partitions=[partition])
    asked = alter_partition_reassignments.Request(timeout_ms=10_000, topics=[topic])
    told = await cluster.ask("AlterPartitionReassignments", asked)
    return ErrorCode(told.error_code or told.responses[0].partitions[0].error_code)


async def delete(cluster: VirtualCluster) -> ErrorCode:
    asked = delete_topics.Request(topics=[delete_topics.DeleteTopicState(name="t")], timeout_ms=10_000)
    return ErrorCode((await cluster.ask("DeleteTopics", asked)).responses[0].error_code)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_an_unopened_replica_that_leaves_the_broker_leaves_nothing_behind(is_deleted: bool) -> None:
    """Afterwards there is no offline replica, no error that mentions it and no directory, and the broker stops
    cleanly."""

    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2))
        await cluster.put(b"value")
        process = cluster.machines[3].process
        assert process is not None
        process.world.disk.handles_max = process.world.disk.handles
        hosting, log_dirs = cluster.broker(3).replication.hosting, cluster.broker(3).storage.log_dirs
        assert (await cluster.reassign(3, 1)).error_code == 0
        await cluster.until(lambda: bool(list(hosting.lost())), "it cannot be opened")
        assert log_dirs.is_lost("t", 0, bytes(16)) is False
        assert await (delete if is_deleted else call_off)(cluster) == ErrorCode.NONE
        await cluster.until(
            lambda: (
                ("t" not in cluster.broker(3).metadata.image.topics)
                if is_deleted
                else 3 not in cluster.broker(3).metadata.image.topics["t"].partitions[0].replicas
            ),
            "node 3 knows",
        )
        assert list(hosting.lost()) == []
        assert log_dirs.is_lost("t", 0, bytes(16)), "it is in no directory"
        if not is_deleted:
            assert (await cluster.read(3)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        process.world.disk.handles_max = -1
        await cluster.machines[3].stop()
        assert cluster.machines[3].storage.find(f"/data/{CLEAN_SHUTDOWN}") is not None

    play(scene)
