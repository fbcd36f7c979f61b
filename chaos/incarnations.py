"""Who wrote what is in a log: producer ids and epochs, by offset.

A broker keeps a record from being stored twice within one producer epoch. A client that cannot tell what became of a
request begins the next epoch, or takes a new id, and sends what was in it again (KIP-360): copies that come of that are
the client's.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from struct import Struct
from typing import NamedTuple

_HEADER = Struct(">qi31xqh")
"""Base offset and length; 31 bytes on, the producer's id and epoch (message format v2)."""
_BEFORE_LENGTH = 12


class Incarnation(NamedTuple):
    """Of a producer."""

    producer_id: int
    epoch: int

    def may_repeat(self, earlier: Incarnation) -> bool:
        """Whether it comes after the other in a way that lets a client send records of that again."""
        return self.producer_id != earlier.producer_id or self.epoch > earlier.epoch


class Incarnations:
    """Those of one partition's batches."""

    def __init__(self) -> None:
        self._bases = array("q")
        self._ids = array("q")
        self._epochs = array("h")

    @classmethod
    def of_log(cls, log: bytes) -> Incarnations:
        """Of segments, one behind the other. A batch that is cut off at the end is left out."""
        found, at = cls(), 0
        while at + _HEADER.size <= len(log):
            base, length, producer_id, epoch = _HEADER.unpack_from(log, at)
            at += _BEFORE_LENGTH + length
            if at > len(log):
                break
            found.add(base, Incarnation(producer_id, epoch))
        return found

    def add(self, base_offset: int, incarnation: Incarnation) -> None:
        """Of the batch that begins there: behind all that were added before."""
        self._bases.append(base_offset)
        self._ids.append(incarnation.producer_id)
        self._epochs.append(incarnation.epoch)

    def at(self, offset: int) -> Incarnation | None:
        """None before the first batch."""
        number = bisect_right(self._bases, offset) - 1
        return None if number < 0 else Incarnation(self._ids[number], self._epochs[number])

    def is_repeated(self, offset: int, again: int) -> bool:
        """Whether what is at `offset` and `again`, behind it, was sent again by a later incarnation."""
        first, second = self.at(offset), self.at(again)
        return first is not None and second is not None and second.may_repeat(first)
