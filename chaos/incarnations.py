"""The producer ids and epochs of the batches in a log, by offset.

A broker prevents duplicates within one producer epoch. A client that does not know the outcome of a request starts the
next epoch, or takes a new id, and resends its records (KIP-360). Such duplicates are not the broker's fault.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from struct import Struct
from typing import NamedTuple

_HEADER = Struct(">qi31xqh")
"""Base offset and length and, 31 bytes later, producer id and epoch (message format v2)."""
_BEFORE_LENGTH = 12


class Incarnation(NamedTuple):
    """A producer id and epoch."""

    producer_id: int
    epoch: int

    def may_repeat(self, earlier: Incarnation) -> bool:
        """Whether it follows the earlier incarnation in such a way that a client may have resent its records."""
        return self.producer_id != earlier.producer_id or self.epoch > earlier.epoch


class Incarnations:
    """The producer ids and epochs of one partition's batches."""

    def __init__(self) -> None:
        self._bases = array("q")
        self._ids = array("q")
        self._epochs = array("h")

    @classmethod
    def of_log(cls, log: bytes) -> Incarnations:
        """Parse concatenated segments. Ignores a truncated batch at the end."""
        found, at = cls(), 0
        while at + _HEADER.size <= len(log):
            base, length, producer_id, epoch = _HEADER.unpack_from(log, at)
            at += _BEFORE_LENGTH + length
            if at > len(log):
                break
            found.add(base, Incarnation(producer_id, epoch))
        return found

    def add(self, base_offset: int, incarnation: Incarnation) -> None:
        """Add the batch at `base_offset`, which must be above the offsets of all batches that were added before."""
        self._bases.append(base_offset)
        self._ids.append(incarnation.producer_id)
        self._epochs.append(incarnation.epoch)

    def at(self, offset: int) -> Incarnation | None:
        """The incarnation of the batch at an offset; None before the first batch."""
        number = bisect_right(self._bases, offset) - 1
        return None if number < 0 else Incarnation(self._ids[number], self._epochs[number])

    def is_repeated(self, offset: int, again: int) -> bool:
        """Whether the record at `again` is the record from `offset`, resent by a later incarnation."""
        first, second = self.at(offset), self.at(again)
        return first is not None and second is not None and second.may_repeat(first)
