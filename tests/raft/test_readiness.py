"""A node that starts waits for the metadata, unless it cannot continue."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.sim.cluster.setup import CONTROLLER_PORT
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.rpc import vote
from tests.replication.virtual import VirtualCluster, play


def test_a_node_that_cannot_continue_does_not_wait_for_the_metadata() -> None:
    """A disk error during the start is reported at once, and not as a missing leader."""

    async def scene(cluster: VirtualCluster) -> None:
        cluster_id, epoch = cluster.broker(1).storage.cluster_id, cluster.broker(1).quorum.epoch
        for machine in cluster.machines.values():
            machine.stay_down()
            machine.kill()
        alone = cluster.machines[1]
        alone.start()
        listeners = cluster.fabric.host(alone.setup.address).listeners
        await cluster.until(lambda: CONTROLLER_PORT in listeners, "its directories are open")
        alone.storage.fail(1.0)
        peer = await Peer.dial(cluster.client.network, alone.setup.address, CONTROLLER_PORT)
        candidacy = vote.PartitionData(
            replica_epoch=epoch + 1, replica_id=2, last_offset_epoch=epoch, last_offset=1 << 20
        )
        topics = [vote.TopicData(topic_name=METADATA_TOPIC, partitions=[candidacy])]
        told = await peer.ask("Vote", vote.Request(cluster_id=cluster_id, voter_id=1, topics=topics), version=1)
        assert told.error_code != 0, "a vote that cannot be stored is not granted"
        await cluster.until(lambda: alone.process is None, "its start has ended", limit_s=1.0)
        (why,) = [line for line in cluster.history.trace if "does not start" in line]
        assert "input/output error" in why

    play(scene, kpybroker_fsync="always")
