"""The undecided transactions of a log, and the producers that wait for permission to begin one."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

VERIFYING_LIMIT = 10_000
"""The most producers of one log that are being verified. Beyond this, the one that has waited longest must retry."""


class Ended(NamedTuple):
    """A transaction that a marker has just ended: `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class Transactions:
    """The offsets at which the unfinished transactions of a log begin; read_committed consumers do not read beyond the
    first of them."""

    __slots__ = ("_ended", "_open", "quiet")

    def __init__(self) -> None:
        self._open: OrderedDict[int, int] = OrderedDict()
        """First offset -> producer id, in ascending order."""
        self._ended: deque[Ended] = deque()
        """Transactions whose markers have not committed yet, in the order of the markers."""
        self.quiet = True
        """Whether there is neither an open transaction nor an uncommitted marker."""

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Add an open transaction. First offsets are added in ascending order."""
        self._open[first_offset] = producer_id
        self.quiet = False

    def end(self, ended: Ended) -> int:
        """Returns what the last stable offset will be once the marker has committed, if no earlier transaction is
        left."""
        del self._open[ended.first_offset]
        self._ended.append(ended)
        return next(iter(self._open), ended.last_offset + 1)

    def forget(self, first_offset: int) -> None:
        """Remove an open transaction of which no readable record is left."""
        del self._open[first_offset]

    def first_open(self) -> int | None:
        return next(iter(self._open), None)

    def stable_below(self, high_watermark: int) -> int:
        """The last stable offset: everything below it has committed, and so have the markers of all transactions that
        begin below it."""
        ended = self._ended
        while ended and ended[0].last_offset < high_watermark:
            ended.popleft()
        self.quiet = not (ended or self._open)
        first = next(iter(self._open), high_watermark)
        if ended:
            first = min(first, min(one.first_offset for one in ended))
        return min(first, high_watermark)


class Verification:
    """A pending question to the coordinator: does this producer have a transaction with this partition? A marker or a
    batch that arrives in the meantime makes the answer void (KIP-890)."""

    __slots__ = ("at_ms", "begins_at_zero", "lowest_sequence", "producer_epoch", "producer_id")

    def __init__(self, producer_id: int, producer_epoch: int, sequence: int, now_ms: int, *, bumps: bool) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.lowest_sequence = sequence
        self.at_ms = now_ms
        self.begins_at_zero = bumps
        """The epoch is bumped with each transaction, so the first batch to a partition without state for this epoch
        must have sequence 0."""


NOT_NEEDED = Verification(-1, -1, -1, 0, bumps=False)
"""`transaction.partition.verification.enable` is off: every producer may begin."""


class Verifications:
    """The pending verifications of a log, by producer id."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: OrderedDict[int, Verification] = OrderedDict()

    def begin(self, producer_id: int, producer_epoch: int, sequence: int, now_ms: int, *, bumps: bool) -> Verification:
        """Batches that wait at the same time share one verification."""
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
