"""Mutants of retired partitions: records that are hidden or refused, and offsets that are not carried over."""

from __future__ import annotations

from collections.abc import Callable

from kpybroker.broker.closed_partitions import ClosedPartitions
from kpybroker.broker.empty_partitions import EmptyPartitions
from kpybroker.metadata.image import Image, OffsetsOf
from kpybroker.metadata.retirements import Retirement
from kpybroker.metadata.topics import TopicImage
from kpybroker.sim.mutants.mutant import Mutant, Patch


def _without_grace(admit: Callable[..., None]) -> Callable[..., None]:
    def hasty(self: ClosedPartitions, topic: str, index: int, client_id: str, host: str, now_s: float) -> None:
        admit(self, topic, index, client_id, host, now_s + 1_000_000)

    return hasty


def _all_empty(_: EmptyPartitions, retirement: Retirement) -> dict[int, bool]:
    return dict.fromkeys(range(retirement.in_use, retirement.total), True)


def _under_its_own_name(_: Image, topic: TopicImage) -> OffsetsOf:
    return OffsetsOf(topic.name, topic.id, len(topic.partitions))


def _in_the_same_order(self: Retirement, index: int) -> int:
    return index + self.in_use if index < self.total - self.in_use else index - self.in_use


RETIREMENTS = (
    Mutant(
        "retired partitions accept no records at once",
        (Patch(ClosedPartitions, "admit", _without_grace(ClosedPartitions.admit)),),
        ("crash",),
        actors=("fewer",),
    ),
    Mutant(
        "retired partitions with records are said to be empty",
        (Patch(EmptyPartitions, "_found", _all_empty),),
        ("crash",),
        actors=("fewer",),
    ),
    Mutant(
        "what is committed for retired partitions stays under their name",
        (Patch(Image, "offsets_of", _under_its_own_name),),
        ("crash",),
        actors=("fewer",),
    ),
    Mutant(
        "retired partitions are read in another order than they are listed in",
        (Patch(Retirement, "mirrored", _in_the_same_order),),
        ("crash",),
        brokers=3,
        actors=("fewer",),
    ),
)
