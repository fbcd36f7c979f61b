"""A partition that leads, over a log in a directory of the test's own."""

from __future__ import annotations

from pathlib import Path

from kpybroker.config import LogSettings
from kpybroker.replication.partition.hosting import Hosting
from kpybroker.replication.partition.partition import Partition
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import Batch, encode_batch, split
from kpybroker.world.real import RealWorld

NODE = 1
NOW_MS = 1_700_000_000_000


def leading(world: RealWorld, directory: Path, settings: LogSettings | None = None, epoch: int = 0) -> Partition:
    """t-0 in `directory`, recovered if it is there, led by this node."""
    storage = Log.open(world, str(directory / "t-0"), "t", 0, settings or LogSettings(), clean=False)
    partition = Hosting(NODE).host("t", bytes(16), 0, storage)
    partition.leader_id, partition.leader_epoch = NODE, epoch
    partition.isr = partition.replicas = (NODE,)
    partition.take_lead()
    return partition


def batch(*values: bytes) -> list[Batch]:
    return split(encode_batch([(b"k", value) for value in values], timestamp_ms=NOW_MS))


class Waiting:
    """Counts how often it was settled."""

    def __init__(self) -> None:
        self.settled = 0

    def settle(self) -> None:
        self.settled += 1
