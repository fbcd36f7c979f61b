"""Mutants with bugs that have an effect only when a device is slow or hangs."""

from __future__ import annotations

from kpybroker.replication.partition.partition import Partition
from kpybroker.sim.cluster.setup import DISK_HANG, WRITE_STALL
from kpybroker.sim.mutants.mutant import Mutant, Patch, force
from kpybroker.storage.dirs.disk_watch import DiskWatch
from kpybroker.storage.log.log import Log
from kpybroker.storage.log.write_behind import WriteBehind


def _writes_on_the_loop(log: Log, *, wait: bool = True) -> None:
    """Write on the event loop, even if the device is slow."""
    segment = log.segments.active
    position = segment.written_bytes
    if log._queue:
        log.files.world.disk.pwritev(segment.handle(), log._queue, position)
        log._queue.clear()
        log.files.wrote(segment, segment.size_bytes - position, log.end)


def _forgets_later_ones(behind: WriteBehind, data: bytes, end: int, *, waits: bool) -> None:
    """Count batches that are flushed during a thread's write as written by that thread."""
    if behind._under_way is None:
        behind._chunks.append((data, end))
        behind._files.device.queue(len(data))
        behind._begin(waits=waits)
    else:
        force(behind, _under_way=behind._under_way._replace(end=end))


def _sees_nothing(watch: DiskWatch) -> None:
    """Never detect a disk that hangs."""


STALLS = (
    Mutant(
        "slow writes block the event loop",
        (Patch(Log, "flush", _writes_on_the_loop),),
        (WRITE_STALL,),
    ),
    Mutant(
        "records are acknowledged while a thread still writes them",
        (Patch(Partition, "committable_end", property(lambda self: self.log.end)),),
        (WRITE_STALL, "crash"),
    ),
    Mutant(
        "records flushed while a thread writes are lost",
        (Patch(WriteBehind, "add", _forgets_later_ones),),
        (WRITE_STALL,),
    ),
    Mutant(
        "a broker stays leader although its disk hangs",
        (Patch(DiskWatch, "look", _sees_nothing),),
        (DISK_HANG,),
        brokers=3,
    ),
)
