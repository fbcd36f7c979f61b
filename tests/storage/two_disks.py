"""A node with two disks in virtual time. One of the disks can be slow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Event

from kpybroker.config import LogSettings
from kpybroker.replication.partition.partition import Partition
from kpybroker.replication.partition.replica_rules import ReplicaRules
from kpybroker.sim.world.storage import Storage
from kpybroker.storage.log.log import Log
from kpybroker.world import Buffer
from kpybroker.world.devices import SLOW_WRITE_S
from kpybroker.world.real import RealDisk
from tests.replication.leading import NODE, NOW_MS, Host, Waiting, batch
from tests.storage.compacting import VirtualWorld

STALL_S = 30.0


class TwoDisks(VirtualWorld):
    """The disks /slow and /quick, each with a partition that this node leads."""

    def __init__(self, settings: LogSettings | None = None) -> None:
        super().__init__(Storage())
        self.hosting = Host(ReplicaRules(NODE))
        self.slow, self.quick = (self.led(path, settings or LogSettings()) for path in ("/slow", "/quick"))

    def led(self, path: str, settings: LogSettings) -> Partition:
        self.disk.separate(path)
        self.disk.mkdir(path)
        storage = Log.open(self, f"{path}/t-0", path[1:], 0, settings, clean=True)  # type: ignore[arg-type]
        partition = self.hosting.host(path[1:], path.encode().ljust(16), 0, storage)
        partition.leader_id, partition.leader_epoch, partition.isr = NODE, 0, (NODE,)
        partition.replicas = (NODE,)
        partition.take_lead()
        return partition

    def stall(self) -> None:
        """Make writes below /slow wait, and mark the device as slow."""
        self.storage.stalled_below, self.storage.stalled_until_s = "/slow", self.loop.time() + STALL_S
        self.disk.device("/slow/t-0").took(SLOW_WRITE_S, self.loop.time())

    def appended(self, *values: bytes) -> tuple[Waiting, Waiting]:
        """Append records to both partitions and flush. Return the waiters for the commit."""
        waiting = Waiting(), Waiting()
        for partition, waiter in zip((self.slow, self.quick), waiting, strict=True):
            partition.when_committed(partition.append(batch(*values), NOW_MS).last_offset + 1, waiter)
        self.hosting.flush()
        return waiting

    def content(self, partition: Partition) -> bytes:
        return bytes(self.storage.file(f"{partition.log.segments.active.path}.log").content)


class HeldDisk(RealDisk):
    """A real disk on which writes below a directory wait for `may_write`."""

    def __init__(self, below: Path) -> None:
        super().__init__()
        self.below = below
        self.may_write = Event()

    def wait(self) -> None:
        assert self.may_write.wait(20)

    def _write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self.device(str(self.below)) is self._by_handle[handle]:
            self.wait()
        return super()._write(handle, buffers, offset)
