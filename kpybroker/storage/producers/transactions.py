"""The unfinished transactions of a log, and the pending verifications of producers that want to begin one."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

VERIFYING_LIMIT = 10_000
"""The maximum number of pending verifications of one log. For each further one, the oldest is removed, and its producer
has to retry."""


class Ended(NamedTuple):
    """A transaction that a marker has ended. `last_offset` is the offset of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class Transactions:
    """The unfinished transactions of a log. read_committed consumers read only up to the first offset of the first
    one."""

    __slots__ = ("_ended", "_open", "quiet")

    def __init__(self) -> None:
        self._open: OrderedDict[int, int] = OrderedDict()
        """Producer ids of open transactions by first offset, in ascending order."""
        self._ended: deque[Ended] = deque()
        """Transactions whose markers are not committed yet, in the order of the markers."""
        self.quiet = True
        """Whether there is neither an open transaction nor an uncommitted marker."""

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Add an open transaction. First offsets are added in ascending order."""
        self._open[first_offset] = producer_id
        self.quiet = False

    def end(self, ended: Ended) -> int:
        """Move a transaction from the open to the ended ones. Return the last stable offset once its marker is
        committed, without regard to other markers that are not committed."""
        del self._open[ended.first_offset]
        self._ended.append(ended)
        return next(iter(self._open), ended.last_offset + 1)

    def forget(self, first_offset: int) -> None:
        """Remove an open transaction whose records have been deleted."""
        del self._open[first_offset]

    def first_open(self) -> int | None:
        return next(iter(self._open), None)

    def stable_below(self, high_watermark: int) -> int:
        """The last stable offset for this high watermark. Below it, all records are committed, and so are the markers
        of all transactions that begin there."""
        ended = self._ended
        while ended and ended[0].last_offset < high_watermark:
            ended.popleft()
        self.quiet = not (ended or self._open)
        first = next(iter(self._open), high_watermark)
        if ended:
            first = min(first, min(one.first_offset for one in ended))
        return min(first, high_watermark)


class Verification:
    """A pending request to the transaction coordinator, which verifies that the producer's transaction includes this
    partition. A marker or a batch that is written in the meantime voids the verification (KIP-890)."""

    __slots__ = ("at_ms", "begins_at_zero", "lowest_sequence", "producer_epoch", "producer_id")

    def __init__(self, producer_id: int, producer_epoch: int, sequence: int, now_ms: int, *, bumps: bool) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.lowest_sequence = sequence
        self.at_ms = now_ms
        self.begins_at_zero = bumps
        """Whether the first batch to a partition without state for this epoch must have sequence 0, because the epoch
        is bumped with each transaction."""


NOT_NEEDED = Verification(-1, -1, -1, 0, bumps=False)
"""The verification for `transaction.partition.verification.enable=false`, with which every producer may begin."""


class Verifications:
    """The pending verifications of a log, by producer id."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: OrderedDict[int, Verification] = OrderedDict()

    def begin(self, producer_id: int, producer_epoch: int, sequence: int, now_ms: int, *, bumps: bool) -> Verification:
        """Begin a verification, or return the pending one of this producer, which concurrent batches share."""
        known = self._by_id.get(producer_id)
        if known is None:
            if len(self._by_id) >= VERIFYING_LIMIT:
                self._by_id.popitem(last=False)
            known = self._by_id[producer_id] = Verification(producer_id, producer_epoch, sequence, now_ms, bumps=bumps)
        elif producer_epoch > known.producer_epoch:
            known.producer_epoch, known.lowest_sequence = producer_epoch, sequence
        elif producer_epoch == known.producer_epoch and sequence < known.lowest_sequence:
            known.lowest_sequence = sequence
        return known

    def get(self, producer_id: int) -> Verification | None:
        return self._by_id.get(producer_id)

    def done(self, producer_id: int) -> None:
        if self._by_id:
            self._by_id.pop(producer_id, None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        while self._by_id:
            oldest = next(iter(self._by_id.values()))
            if now_ms - oldest.at_ms < expiration_ms:
                return
            del self._by_id[oldest.producer_id]
