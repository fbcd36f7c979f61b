"""Mutants with bugs in log compaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kpybroker.sim.mutants.mutant import Mutant, Patch, force
from kpybroker.storage.compaction.candidates import Dirty, look
from kpybroker.storage.compaction.cleaned_transactions import CleanedTransactions
from kpybroker.storage.compaction.offset_map import OffsetMap
from kpybroker.storage.dirs import cleaner
from kpybroker.storage.log.log import Log


def _expects_a_newer(put: Callable[[OffsetMap, bytes, int], bool]) -> Callable[[OffsetMap, bytes, int], bool]:
    def one_further(known: OffsetMap, key: bytes, offset: int) -> bool:
        latest = known.latest
        is_put = put(known, key, offset + 1)
        force(known, latest=offset if is_put else latest)
        return is_put

    return one_further


def _looks_to_the_end(log: Log, now_ms: int) -> Dirty | None:
    stable = log.last_stable
    force(log, last_stable=log.end)
    try:
        return look(log, now_ms)
    finally:
        force(log, last_stable=stable)


def _drops_nothing(*_: Any) -> bool:
    return False


CLEANERS = (
    Mutant(
        "cleaning mistakes the newest record of a key for an older one",
        (Patch(OffsetMap, "put", _expects_a_newer(OffsetMap.put)),),
        ("crash", "pause"),
        brokers=3,
        compacts=True,
    ),
    Mutant(
        "records above the last stable offset are cleaned",
        (Patch(cleaner, "look", _looks_to_the_end),),
        ("crash", "pause", "isolate"),
        brokers=3,
        compacts=True,
    ),
    Mutant(
        "cleaning treats aborted records as committed",
        (Patch(CleanedTransactions, "drops", _drops_nothing),),
        ("crash", "pause"),
        brokers=3,
        compacts=True,
    ),
)
