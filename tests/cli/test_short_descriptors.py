"""Tests that a process with few descriptors serves all of its many partitions while clients use their whole share of
descriptors."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from kpybroker.client.peer import Peer
from kpybroker.wire.rpc import produce
from kpybroker.world.real import RealWorld
from tests.asking import batch_of, make
from tests.cli.shell import kpybroker_process, ready

LIMIT = 256
PARTITIONS = 150
ROUNDS = 4


async def rounds(port: int) -> set[int]:
    """The error codes of Produce requests to all partitions, each larger than a segment, while no other client can
    connect."""
    world = RealWorld(1)
    peer = await Peer.dial(world.network, "127.0.0.1", port)
    await peer.negotiate()
    await make(peer, "t", PARTITIONS, {"internal.segment.bytes": "5000", "retention.bytes": "9000"})
    codes: set[int] = set()
    with ExitStack() as stack:
        for _ in range(LIMIT):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        for _ in range(ROUNDS):
            rows = [
                produce.PartitionProduceData(index=index, records=batch_of(b"v" * 4000)) for index in range(PARTITIONS)
            ]
            data = [produce.TopicProduceData(name="t", partition_data=rows)]
            told = await peer.ask("Produce", produce.Request(acks=-1, timeout_ms=5000, topic_data=data), version=9)
            codes |= {row.error_code for row in told.responses[0].partition_responses}
    peer.close()
    world.close()
    return codes


def _few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))


@pytest.mark.slow
def test_idle_clients_and_rolls_take_no_partition(tmp_path: Path) -> None:
    settings = [
        f"log.dirs={','.join(str(tmp_path / name) for name in 'abc')}",
        "listeners=PLAINTEXT://127.0.0.1:0",
        "log.flush.offset.checkpoint.interval.ms=100",
        "log.retention.check.interval.ms=100",
        "log.initial.task.delay.ms=100",
    ]
    arguments = [word for setting in settings for word in ("--set", setting)]
    with kpybroker_process("serve", *arguments, preexec_fn=_few_descriptors) as process:
        try:
            port = int(ready(process)["bootstrap"].rpartition(":")[2])
            assert asyncio.run(rounds(port)) == {0}
            assert process.poll() is None
            assert len(os.listdir(f"/proc/{process.pid}/fd")) < LIMIT
        finally:
            process.terminate()
        _, said = process.communicate()
    assert "offline" not in said
    assert "cannot be written" not in said
    assert process.returncode == 0
