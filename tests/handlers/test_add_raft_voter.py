"""Tests AddRaftVoter over a socket, at both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.rpc import add_raft_voter as rpc
from tests.server.clustering import Cluster, run_cluster
from tests.server.voting import Quorum, run_quorum


@pytest.mark.parametrize("version", [0, 1])
def test_an_observer_becomes_a_voter(tmp_path: Path, version: int) -> None:
    async def play(quorum: Quorum) -> None:
        await quorum.start(1)
        await quorum.start(2)
        await quorum.until_caught_up(2)
        told = await quorum.add(2, version=version)
        assert (told.error_code, told.error_message) == (0, None)
        assert quorum.nodes[1].broker.quorum.voters.ids == (1, 2)
        await quorum.voting(1, 2)

    run_quorum(tmp_path, play)


def test_static_voters_are_not_added_to(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        leader = cluster.nodes[await cluster.leader()].broker
        await cluster.until(lambda: leader.quorum.is_active, "the leader is active")
        listener = rpc.Listener(name="CONTROLLER", host="127.0.0.1", port=1)
        request = rpc.Request(voter_id=9, cluster_id=leader.storage.cluster_id, listeners=[listener])
        with pytest.raises(KafkaError) as refusal:
            await leader.quorum.add_voter(request)
        assert refusal.value.code is ErrorCode.UNSUPPORTED_VERSION

    run_cluster(tmp_path, play)
