"""Mutants of views: records that are left out, shown too early, or shown although they do not match."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kpybroker.serving.fetch import scan
from kpybroker.serving.fetch.filtered import FilteredView
from kpybroker.serving.fetch.scan import Scan
from kpybroker.sim.mutants.mutant import Mutant, Patch
from kpybroker.wire.records.batch import Batch
from kpybroker.wire.records.record_selection import Selection, select


def _leaves_out_what_does_not_fit(keep: Callable[..., None]) -> Callable[..., None]:
    def forgetful(self: Scan, batch: Batch, found: Any) -> None:
        keep(self, batch, b"" if self.size_bytes and not batch.is_control else found)

    return forgetful


def _shows_whole_batches(batch: Batch, plain: bytes, begin: int, end: int, by: Any) -> Iterator[Selection | None]:
    for each in select(batch, plain, begin, end, by):
        if each is not None and each.records:
            each = each._replace(records=batch.record_count)
        yield each


def _up_to_the_end(_: FilteredView, partition: Any) -> int:
    end: int = partition.log.end
    return end


def _hides_end_markers(keep: Callable[..., None]) -> Callable[..., None]:
    def quiet(self: Scan, batch: Batch, found: Any) -> None:
        keep(self, batch, b"" if batch.is_control else found)

    return quiet


VIEWS = (
    Mutant(
        "a view leaves out the batches after the first one",
        (Patch(Scan, "keep", _leaves_out_what_does_not_fit(Scan.keep)),),
        ("crash",),
        actors=("views",),
    ),
    Mutant(
        "a view shows the batches that have a matching record",
        (Patch(scan, "select", _shows_whole_batches),),
        ("crash",),
        actors=("views",),
    ),
    Mutant(
        "a view shows records that are not committed",
        (Patch(FilteredView, "upper", _up_to_the_end),),
        ("crash", "pause", "partition", "isolate", "slow_node"),
        brokers=3,
        actors=("views",),
    ),
    Mutant(
        "a view hides the markers of aborted transactions",
        (Patch(Scan, "keep", _hides_end_markers(Scan.keep)),),
        ("crash",),
        transacts=True,
        actors=("views",),
    ),
)
