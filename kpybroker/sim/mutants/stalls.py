"""Brokers that are broken where a device is slow, on purpose."""

from __future__ import annotations

from kpybroker.replication.partition.partition import Partition
from kpybroker.sim.cluster.setup import DISK_HANG, WRITE_STALL
from kpybroker.sim.mutants.mutant import Mutant, Patch
from kpybroker.storage.dirs.disk_watch import DiskWatch
from kpybroker.storage.log.log import Log
from kpybroker.storage.log.write_behind import WriteBehind


def _writes_on_the_loop(log: Log, *, wait: bool = True) -> None:
    """As if no device was ever slow."""
    segment = log.segments.active
    position = segment.written_bytes
    if log._queue:
        log.files.world.disk.pwritev(segment.handle(), log._queue, position)
        log._queue.clear()
        log.files.wrote(segment, segment.size_bytes - position, log.end)


def _forgets_later_ones(behind: WriteBehind, data: bytes, end: int, *, waits: bool) -> None:
    """What is flushed while a thread writes is taken for written with it."""
    if behind._under_way is None:
        behind._chunks.append((data, end))
        behind._files.device.queue(len(data))
        behind._begin(waits=waits)
    else:
        behind._under_way = behind._under_way._replace(end=end)


def _sees_nothing(watch: DiskWatch) -> None:
    """As if every disk answered."""


STALLS = (
    Mutant(
        "writes stay on the loop, however slow they are",
        (Patch(Log, "flush", _writes_on_the_loop),),
        (WRITE_STALL,),
    ),
    Mutant(
        "acknowledged while a thread still writes",
        (Patch(Partition, "committable_end", property(lambda self: self.log.end)),),
        (WRITE_STALL, "crash"),
    ),
    Mutant(
        "what is flushed while a thread writes is forgotten",
        (Patch(WriteBehind, "add", _forgets_later_ones),),
        (WRITE_STALL,),
    ),
    Mutant(
        "a broker leads on though its disk does not answer",
        (Patch(DiskWatch, "look", _sees_nothing),),
        (DISK_HANG,),
        brokers=3,
    ),
)
