"""Mutants with bugs in log directories: in moves between them, and in the removal of stale files."""

from __future__ import annotations

from typing import Any

from kpybroker.replication.node import replica_moves
from kpybroker.replication.node.directory_reports import DirectoryReports
from kpybroker.sim.mutants.mutant import Mutant, Patch
from kpybroker.storage.dirs.futures import replace
from kpybroker.storage.dirs.log_dir import LogDirectory
from kpybroker.storage.log.log import Log

FAULTS = ("crash", "partition", "isolate", "pause")


def _replaces_too_early(world: Any, current: Log, future: Log, source: Any, target: Any) -> None:
    if future.end > max(future.start, current.synced_end):
        future.truncate_to(future.end - 1)
    replace(world, current, future, source, target)


def _does_nothing(*_: Any) -> None:
    pass


async def _forgets(reports: DirectoryReports, asked: dict[tuple[bytes, int], bytes]) -> bool:
    for key in asked:
        reports.settled(*key)
    return True


def _keeps_the_files(directory: LogDirectory) -> None:
    directory._stale.clear()


MOVERS = (
    Mutant(
        "a moved replica lacks its last record",
        (Patch(replica_moves, "replace", _replaces_too_early),),
        FAULTS,
        brokers=3,
        moves=True,
    ),
    Mutant(
        "a future replica keeps records that the current one has truncated",
        (Patch(replica_moves, "truncate_like", _does_nothing),),
        FAULTS,
        brokers=3,
        moves=True,
    ),
    Mutant(
        "brokers do not report the log directories of replicas",
        (Patch(DirectoryReports, "_send", _forgets),),
        FAULTS,
        brokers=3,
        moves=True,
    ),
    Mutant(
        "a recreated topic keeps the log start of the old topic",
        (Patch(LogDirectory, "_write_without_stale", _keeps_the_files),),
        ("crash",),
    ),
)
