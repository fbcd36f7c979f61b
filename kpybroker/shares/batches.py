"""Batches of delivery states, as the share coordinator stores them, and how new batches are merged into known ones.

If two batches contain the same offset, the batch with the higher delivery count wins, or, if the counts are equal, the
one with the higher state. So deltas may arrive twice or late, with the same result (KIP-932, "Persisting share
partition state").
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple


class DeliveryState(IntEnum):
    """The state of a record in a share group. Only the leader of the partition uses ACQUIRED."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """The record is archived once its dead letter is written (KIP-1191)."""
    ARCHIVED = 4


STORED_STATES = frozenset(DeliveryState) - {DeliveryState.ACQUIRED}
TERMINAL = frozenset({DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED})
"""The states of records that are never delivered again."""


class StateBatch(NamedTuple):
    """Records with the same state and delivery count, from the first to the last offset."""

    first: int
    last: int
    state: int
    deliveries: int


def merged(known: Sequence[StateBatch], told: Iterable[StateBatch], start: int) -> tuple[StateBatch, ...]:
    """The known and the new (`told`) batches merged, from `start` on: disjoint, in order, and with equal neighbours
    joined. A start of -1 removes nothing."""
    waiting = sorted(
        each if each.first >= start else each._replace(first=start) for each in (*known, *told) if each.last >= start
    )
    edges = sorted({edge for each in waiting for edge in (each.first, each.last + 1)})
    found: list[StateBatch] = []
    strongest: list[tuple[int, int, int]] = []  # (-deliveries, -state, last) of the batches that have begun
    begun = 0
    for first, after in pairwise(edges):
        while begun < len(waiting) and waiting[begun].first <= first:
            each = waiting[begun]
            heapq.heappush(strongest, (-each.deliveries, -each.state, each.last))
            begun += 1
        while strongest and strongest[0][2] < first:
            heapq.heappop(strongest)
        if not strongest:
            continue
        deliveries, state = -strongest[0][0], -strongest[0][1]
        if found and found[-1].last == first - 1 and (found[-1].state, found[-1].deliveries) == (state, deliveries):
            found[-1] = found[-1]._replace(last=after - 1)
        else:
            found.append(StateBatch(first, after - 1, state, deliveries))
    return tuple(found)
