"""If a move between log directories cannot begin, it leaves no files behind, so that the next move can succeed."""

from __future__ import annotations

import errno

import pytest

from kpybroker.errors import ErrorCode, KafkaError
from tests.replication.virtual import VirtualCluster, play


def test_a_move_that_cannot_be_opened_can_be_requested_again() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1,), topic="t")
        await cluster.put(b"first", topic="t")
        broker, log = cluster.broker(1), cluster.replica(1, "t").log
        here = log.directory.rpartition("/")[0]
        (there,) = {"/data", "/more"} - {here}
        target = broker.storage.log_dirs.by_path(there)
        assert target is not None
        cluster.machines[1].storage.spoil(f"{there}/t-0.", "", errno.EMFILE)
        for _ in range(2):
            with pytest.raises(KafkaError) as refused:
                broker.replication.replicas.moves.alter("t", 0, there)
            assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert ("t", 0) not in target.futures
            assert not target.damaged
            assert broker.storage.log_dirs.logs["t", 0] is log, "its log is still cleaned"
        cluster.machines[1].storage.mend()
        broker.replication.replicas.moves.alter("t", 0, there)
        await cluster.until(lambda: log.directory.startswith(there), "it has moved")

    play(scene, log_dirs="/data,/more")
