"""Leaves out the batches of aborted transactions, as consumers with `isolation.level=read_committed` do (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kpybroker.wire.records.batch import Batch


class AbortedTransaction(Protocol):
    """A row of `aborted_transactions` in a Fetch response."""

    first_offset: int
    producer_id: int


class AbortedFilter:
    """Filters the batches of one partition in one Fetch response, in the order of their offsets."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(((each.first_offset, each.producer_id) for each in aborted), reverse=True)
        self._doomed: set[int] = set()

    def lets_through(self, batch: Batch) -> bool:
        """Whether a consumer that reads only committed records sees this batch."""
        while self._coming and self._coming[-1][0] <= batch.last_offset:
            self._doomed.add(self._coming.pop()[1])
        if batch.is_control:
            self._doomed.discard(batch.producer_id)
            return False
        return not (batch.is_transactional and batch.producer_id in self._doomed)
