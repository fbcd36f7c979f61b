"""Finds a record of a batch by its timestamp. The scan reads only lengths, timestamps and offsets."""

from __future__ import annotations

from dataclasses import dataclass

from kpybroker.wire.records.record_fields import long_varint, misfit, record_size, varint


@dataclass(slots=True)
class TimeWalk:
    """Finds the first record with a timestamp delta of at least `wanted`, or the newest record.

    The scan reads only lengths, timestamps and offsets. Offsets may have gaps.
    """

    since: int
    """The offset delta from which records are considered."""
    wanted: int | None = None
    """The timestamp delta to find; None for the newest record."""
    seen: int = 0
    found: tuple[int, int] | None = None
    """Offset delta and timestamp delta of the record."""

    @property
    def is_over(self) -> bool:
        return self.wanted is not None and self.found is not None

    def note(self, delta: int, offset: int, key_bytes: int) -> None:
        """Check the next record."""
        self.seen += 1
        if offset >> 1 < self.since or offset & 1:
            return
        if self.wanted is None:
            if self.found is None or delta > self.found[1]:
                self.found = offset >> 1, delta
        elif delta >= self.wanted and self.found is None:
            self.found = offset >> 1, delta

    def note_headers(self, count: int) -> bool:
        """Ignore the headers."""
        return False

    def some(self, plain: bytes, at: int, most: int) -> int:
        """Like `Walk`, with fewer checks: short varints are decoded in place."""
        total, since, wanted, found = len(plain), self.since << 1, self.wanted, self.found
        newest = found[1] if found is not None else -(1 << 80)
        seen = self.seen
        for seen in range(self.seen, self.seen + most):
            begin = at
            if at >= total:
                break
            size = plain[at]
            at += 1
            if size > 0x7F:
                size, at = record_size(plain, begin)
            end = at + (size >> 1)
            if end > total:
                at = begin
                break
            delta = plain[at + 1]
            at += 2
            if delta > 0x7F:
                delta, at = long_varint(plain, at - 1)
            delta = (delta >> 1) ^ -(delta & 1)
            offset = plain[at]
            if offset > 0x7F:
                offset, at = varint(plain, at)
                at -= 1
            if at >= end or size & 1:
                raise misfit(seen)
            at = end
            if offset < since or offset & 1:
                continue
            if wanted is None:
                if delta > newest:
                    newest = delta
                    self.found = offset >> 1, delta
            elif delta >= wanted:
                self.found = offset >> 1, delta
                break
        else:
            seen += most and 1
        self.seen = seen
        return at
