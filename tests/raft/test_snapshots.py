"""A node that receives a snapshot does not treat an error of its own files as a lost connection."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator

import pytest

from kpybroker.config import parse_config
from kpybroker.errors import Damage, KafkaError
from kpybroker.raft.core.state import Tail
from kpybroker.raft.log.snapshots import Snapshots
from kpybroker.sim.world.storage import Storage
from kpybroker.wire.records.snapshot import encode_snapshot
from tests.replication.failing import CHANGES, FailingWorld

CONFIG = parse_config()
SNAPSHOT = Tail(1, 10)


async def pieces() -> AsyncIterator[bytes]:
    for chunk in encode_snapshot([], epoch=1, now_ms=1000, last_timestamp_ms=1000, control=[]):
        yield chunk


async def broken_off() -> AsyncIterator[bytes]:
    raise ConnectionResetError("by peer")
    yield b""


def receiving(world: FailingWorld, snapshots: Snapshots) -> None:
    world.loop.run_until_complete(snapshots.receive(SNAPSHOT, pieces()))


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, Damage), (errno.EIO, Damage), (errno.EMFILE, KafkaError)])
def test_a_snapshot_that_cannot_be_written_is_not_a_lost_connection(code: int, kind: type[Exception]) -> None:
    at, ended = 0, False
    while not ended:
        world = FailingWorld(Storage())
        world.disk.mkdir("/data")
        snapshots = Snapshots(world, CONFIG, "/data")
        world.failing.fail(CHANGES | {"sync", "sync_directory"}, code, range(at, at + 1))
        try:
            receiving(world, snapshots)
            ended = True
        except kind:
            assert snapshots.newest is None
        world.failing.mend()
        receiving(world, snapshots)
        assert snapshots.newest == SNAPSHOT
        at += 1
    assert at >= 5


def test_a_lost_connection_is_reported_as_one() -> None:
    world = FailingWorld(Storage())
    world.disk.mkdir("/data")
    with pytest.raises(ConnectionResetError):
        world.loop.run_until_complete(Snapshots(world, CONFIG, "/data").receive(SNAPSHOT, broken_off()))
