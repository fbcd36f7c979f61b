"""Tracks transactions during cleaning, to decide which of their records and markers can be removed.

Records of aborted transactions are removed at once. A marker is removed when no record of its transaction is left and
its delete horizon has passed. Source: KIP-98, KIP-534.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from operator import itemgetter

from kpybroker.storage.files.txn_index import AbortedTransaction
from kpybroker.wire.records.batch import Batch
from kpybroker.wire.records.markers import read_marker


class CleanedTransactions:
    """The transactions in the part of a log that is being cleaned. Each batch must be passed to `drops` or `outlived`,
    in the order of the log. `aborted` are the aborted transactions in that part, in any order."""

    __slots__ = ("_aborting", "_committing", "_to_come")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._to_come = deque(sorted(aborted, key=itemgetter(1)))
        self._aborting: dict[int, tuple[AbortedTransaction, bool]] = {}
        """By producer id: the aborted transaction, and whether records of it were found."""
        self._committing: set[int] = set()
        """Producers with records of transactions that are not aborted."""

    def drops(self, batch: Batch) -> bool:
        """Whether the records of a data batch belong to an aborted transaction."""
        self._begin_up_to(batch.last_offset)
        if not batch.is_transactional:
            return False
        aborting = self._aborting.get(batch.producer_id)
        if aborting is None:
            self._committing.add(batch.producer_id)
            return False
        self._aborting[batch.producer_id] = aborting[0], True
        return True

    def outlived(self, batch: Batch) -> tuple[bool, AbortedTransaction | None]:
        """For a control batch: whether no record of its transaction was found, and the transaction itself if it was
        aborted and records of it were found."""
        self._begin_up_to(batch.last_offset)
        if not batch.record_count:
            return True, None
        marker = read_marker(batch)
        if marker is None:
            return False, None
        if marker.commits:
            met = marker.producer_id in self._committing
            self._committing.discard(marker.producer_id)
            return not met, None
        aborted, met = self._aborting.pop(marker.producer_id, (None, False))
        return not met, aborted if met else None

    def _begin_up_to(self, offset: int) -> None:
        while self._to_come and self._to_come[0].first_offset <= offset:
            begun = self._to_come.popleft()
            self._aborting.setdefault(begun.producer_id, (begun, False))
