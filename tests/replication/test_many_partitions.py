"""Many partitions on three nodes, one of which crashes and restarts."""

from __future__ import annotations

import pytest

from kpybroker.replication.follower import fetch_session
from kpybroker.wire.rpc import create_topics
from tests.replication.virtual import VirtualCluster, play

COUNT = 100


@pytest.mark.parametrize("named_max", [fetch_session.NAMED_MAX, 7])
def test_many_partitions_get_new_leaders_and_catch_up(named_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even if one Fetch has no room for all partitions."""
    monkeypatch.setattr(fetch_session, "NAMED_MAX", named_max)

    async def scene(cluster: VirtualCluster) -> None:
        wanted = create_topics.CreatableTopic(name="t", num_partitions=COUNT, replication_factor=3)
        told = await cluster.ask("CreateTopics", create_topics.Request(topics=[wanted], timeout_ms=60_000))
        assert told.topics[0].error_code == 0
        for index in range(COUNT):
            await cluster.put(b"%d" % index, index=index)
        dead = next(node_id for node_id, broker in cluster.brokers.items() if not broker.controller.is_active)
        cluster.machines[dead].kill()
        everything = range(COUNT)
        await cluster.until(
            lambda: all(cluster.image(index=index).leader not in (-1, dead) for index in everything), "others lead", 5
        )
        for index in range(0, COUNT, 7):
            await cluster.put(b"without", index=index)
        await cluster.start(dead)
        await cluster.until(
            lambda: all(len(cluster.image(index=index).isr) == 3 for index in everything), "all are in sync", 30
        )
        for index in everything:
            ends = {cluster.replica(node_id, index=index).log.end for node_id in cluster.brokers}
            assert ends == {2 if index % 7 == 0 else 1}

    play(scene)
