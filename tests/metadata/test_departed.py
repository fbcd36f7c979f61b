"""After a broker is fenced, Metadata contains it for a while, but not if it was fenced before or has registered
again."""

from __future__ import annotations

import asyncio

from kpybroker.metadata.whereabouts import DEPARTED_S
from kpybroker.wire.rpc import metadata
from tests.replication.virtual import VirtualCluster, play


async def _listed(cluster: VirtualCluster, at: int) -> list[int]:
    told = await cluster.ask("Metadata", metadata.Request(topics=[]), at)
    return sorted(broker.node_id for broker in told.brokers)


def test_a_broker_that_died_is_named_for_a_while() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2, 3), topic="t")
        dead = next(node_id for node_id, broker in cluster.brokers.items() if not broker.controller.is_active)
        other = next(node_id for node_id in cluster.brokers if node_id != dead)
        cluster.machines[dead].kill()
        fenced = cluster.broker(other)
        await cluster.until(lambda: fenced.metadata.image.brokers[dead].fenced, "it is fenced")
        told = await cluster.ask("Metadata", metadata.Request(topics=None), other)
        assert sorted(broker.node_id for broker in told.brokers) == [1, 2, 3]
        assert told.controller_id != dead
        partition = told.topics[0].partitions[0]
        assert partition.leader_id != dead
        assert partition.offline_replicas == [dead]
        await asyncio.sleep(DEPARTED_S)
        assert await _listed(cluster, other) == sorted({1, 2, 3} - {dead})
        await cluster.start(dead)
        await cluster.until(lambda: not fenced.metadata.image.brokers[dead].fenced, "it is back")
        assert await _listed(cluster, other) == [1, 2, 3]

    play(scene)


def test_a_broker_that_was_gone_before_is_not_named() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        dead, restarted = sorted(
            (node_id for node_id, broker in cluster.brokers.items() if not broker.controller.is_active)
        )
        other = cluster.broker(next(node_id for node_id in cluster.brokers if node_id not in (dead, restarted)))
        cluster.machines[dead].kill()
        await cluster.until(lambda: other.metadata.image.brokers[dead].fenced, "it is fenced")
        cluster.machines[restarted].kill()
        await cluster.until(lambda: restarted not in cluster.brokers, "it has ended")
        await cluster.start(restarted)
        alive = cluster.broker(restarted)
        await cluster.until(lambda: not alive.metadata.image.brokers[restarted].fenced, "it is back")
        assert await _listed(cluster, restarted) == sorted({1, 2, 3} - {dead})

    play(scene)
