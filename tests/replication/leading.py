"""Creates a partition that this node leads, with a log in a directory of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kpybroker.config import LogSettings
from kpybroker.replication.partition.flush_queue import FlushQueue
from kpybroker.replication.partition.hosting import Hosting
from kpybroker.replication.partition.partition import Partition
from kpybroker.replication.partition.partition_events import PartitionEvents
from kpybroker.replication.partition.replica_rules import ReplicaRules
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import Batch, encode_batch, split
from kpybroker.world.real import RealWorld

NODE = 1
NOW_MS = 1_700_000_000_000


class Host:
    """The partitions of a node, with its flush queue. `proposed` has the partitions that have proposed an ISR. The
    other attributes are those of its `Hosting`."""

    def __init__(self, rules: ReplicaRules, propose: Callable[[Partition], None] | None = None) -> None:
        self.queue = FlushQueue()
        self.proposed: list[Partition] = []
        self.hosting = Hosting(rules, self.queue, PartitionEvents(propose or self.proposed.append))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.hosting, name)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.hosting)

    def flush(self) -> None:
        self.queue.flush()


def leading(
    world: RealWorld,
    directory: Path,
    settings: LogSettings | None = None,
    epoch: int = 0,
    host: Host | None = None,
) -> Partition:
    """Open t-0 in `directory`, with a recovery if it exists, and lead it on `host`, which is a new Host by default."""
    storage = Log.open(world, str(directory / "t-0"), "t", 0, settings or LogSettings(), clean=False)
    partition = (host or Host(ReplicaRules(NODE))).host("t", bytes(16), 0, storage)
    partition.leader_id, partition.leader_epoch = NODE, epoch
    partition.isr = partition.replicas = (NODE,)
    partition.take_lead()
    return partition


def batch(*values: bytes) -> list[Batch]:
    return split(encode_batch([(b"k", value) for value in values], timestamp_ms=NOW_MS))


class Waiting:
    """A waiter that counts how many times it is settled."""

    def __init__(self) -> None:
        self.settled = 0

    def settle(self) -> None:
        self.settled += 1
