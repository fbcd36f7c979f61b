"""The records of a batch without making objects of them: a walk over their lengths, in slices.

Layout of a record: length varint (of what follows), attributes int8, timestamp delta varint, offset delta varint, key
and value (length varint, -1 for none; bytes), number of headers varint, headers (key and value as above). Varints are
zigzag. Source: KIP-98, "Message format".
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Protocol

from kpybroker.errors import ErrorCode, KafkaError

INT_BITS = 35
"""Five bytes, as much as a varint of 32 bits takes: Java's consumer refuses a longer one."""
LONG_BITS = 70
"""Ten bytes, as much as a varint of 64 bits takes: timestamp deltas alone."""
SLICE_RECORDS = 1000
"""Records, or headers, of one slice: about half a millisecond."""
BLAMED_LIMIT = 1000
"""Records that one refusal names."""
_FIELDS_BYTES = 32
"""At least what stands in a record before its key: its length, attributes, two deltas, the length of the key."""
_SHORT_BYTES = 64 << 10
"""Of a record that is not whole in its piece: up to here it is put together, else walked over field by field."""
_FIRST = Struct(">6B").unpack_from
Piece = bytes | memoryview
Slices = Generator[None, None, None]
"""Work on the loop; others have their turn wherever it yields."""


class Walking(Protocol):
    """What goes over the records."""

    seen: int
    """Records walked over."""

    def some(self, plain: Piece, at: int, most: int) -> int:
        """Walk over at most `most` records that are whole; the position after them.

        Raises KafkaError; IndexError for a whole record whose fields leave it.
        """

    def note(self, delta: int, offset: int, key_bytes: int) -> None:
        """One large record: its deltas (offset still zigzag), -1 for no key. Raises KafkaError."""

    @property
    def is_over(self) -> bool:
        """Nothing of what follows matters."""


@dataclass(slots=True)
class Walk:
    """What to look for in the records of a batch, and what was found; a record is told by its index.

    Each record is checked for its form, and the offsets must follow one another.
    """

    earliest: int
    latest: int
    """Bounds of the timestamp deltas, in milliseconds."""
    timeless: int | None = None
    """The timestamp delta of records without a timestamp, which any bounds let pass."""
    seen: int = 0
    newest: int = -(1 << 63)
    """The largest timestamp delta."""
    without_key: list[int] = field(default_factory=list)
    out_of_time: list[int] = field(default_factory=list)
    """Of both the first BLAMED_LIMIT."""

    @property
    def is_over(self) -> bool:
        return False

    def note(self, delta: int, offset: int, key_bytes: int) -> None:
        """The next record. Raises KafkaError."""
        if offset != self.seen << 1:
            raise _not_next(self.seen)
        if delta > self.newest:
            self.newest = delta
        if not self.earliest <= delta <= self.latest:
            self.blame_time(self.seen, delta)
        if key_bytes < 0:
            self.blame_key(self.seen)
        self.seen += 1

    def blame_time(self, index: int, delta: int) -> None:
        if delta != self.timeless and len(self.out_of_time) < BLAMED_LIMIT:
            self.out_of_time.append(index)

    def blame_key(self, index: int) -> None:
        if len(self.without_key) < BLAMED_LIMIT:
            self.without_key.append(index)

    def some(self, plain: Piece, at: int, most: int) -> int:
        """Short varints are taken apart in place: calls would cost more than all the rest."""
        earliest, latest, newest, total = self.earliest, self.latest, self.newest, len(plain)
        last = expected = (self.seen + most) << 1
        for expected in range(self.seen << 1, last, 2):
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
                delta = delta & 0x7F | plain[at] << 7
                at += 1
                if delta > 0x3FFF:
                    delta, at = varint(plain, at - 2, LONG_BITS)
            delta = (delta >> 1) ^ -(delta & 1)
            if delta > newest:
                newest = delta
            if not earliest <= delta <= latest:
                self.blame_time(expected >> 1, delta)
            offset = plain[at]
            at += 1
            if offset > 0x7F:
                offset = offset & 0x7F | plain[at] << 7
                at += 1
                if offset > 0x3FFF:
                    offset, at = varint(plain, at - 2)
            if offset != expected:
                raise _not_next(expected >> 1)
            key = plain[at]
            at += 1
            if key & 1:
                self.blame_key(expected >> 1)
            elif key > 0x7F:
                key, at = varint(plain, at - 1)
            at += key >> 1
            value = plain[at]
            at += 1
            if value > 0x7F:
                value = value & 0x7F | plain[at] << 7
                at += 1
                if value > 0x3FFF:
                    value, at = varint(plain, at - 2)
            at += value >> 1
            at = _end_of_headers(plain, at, end) if plain[at] else at + 1
            # every length moved `at` forward: ending here, no field has left its record. An odd length is negative
            if at != end or size & 1 or (key & 1 and key != 1) or (value & 1 and value != 1):
                raise misfit(expected >> 1)
        else:
            expected = last
        self.newest, self.seen = newest, expected >> 1
        return at


def walk(plain: bytes, count: int, earliest: int, latest: int) -> Walk:
    """All of `count` records, as `walk_through` goes over them, in one go. Raises KafkaError."""
    found = Walk(earliest, latest)
    for _ in walk_through(found, (plain,), count):
        pass
    return found


def walk_through(found: Walking, pieces: Iterable[Piece], count: int) -> Slices:
    """Go over `count` records whose bytes come in `pieces`, which are held only as long as they are walked over.

    Raises KafkaError: INVALID_RECORD for bytes that are not these records, and what `pieces` raise.
    """
    left = iter(pieces)
    plain: Piece = b""
    at = 0
    while True:
        before = found.seen
        try:
            at = found.some(plain, at, min(SLICE_RECORDS, count - before))
        except IndexError as error:
            raise misfit(before) from error
        if found.is_over:
            return
        if found.seen == count:
            break
        if found.seen - before == SLICE_RECORDS:
            yield
        elif record_size(plain, at)[0] >> 1 > _SHORT_BYTES and len(plain) - at >= _FIELDS_BYTES:
            record = _Large(plain, at, left)
            yield from record.walk_over(found)
            plain, at = record.plain, record.at
        else:
            more = next(left, None)
            if more is None:
                raise KafkaError(ErrorCode.INVALID_RECORD, f"fewer than {count} records in the batch")
            plain = more if at >= len(plain) else bytes(plain[at:]) + bytes(more)
            at = 0
            yield
    yield from _nothing_follows(plain, at, left)


def _nothing_follows(plain: Piece, at: int, left: Iterator[Piece]) -> Slices:
    more: Piece | None = plain[at:]
    while more is not None:
        if more:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"{len(more)} bytes after the last record")
        more = next(left, None)
        if more is not None:
            yield


class _Large:
    """A record that is not whole in its piece and too large to put together: its fields, one by one."""

    def __init__(self, plain: Piece, at: int, left: Iterator[Piece]) -> None:
        self.plain = plain
        self.at = at
        self._left = left
        self._bytes = 0
        """Of the record, that are still to come."""
        self._index = 0

    def walk_over(self, found: Walking) -> Slices:
        """Note it in `found`. Raises KafkaError."""
        self._index = found.seen
        size, self.at = varint(self.plain, self.at)
        if size & 1:
            raise misfit(self._index)
        self._bytes = size >> 1
        yield from self._skip(1)
        delta = yield from self._number(LONG_BITS)
        offset = yield from self._number()
        key_bytes = yield from self._sized()
        yield from self._sized()
        count = yield from self._number()
        if count & 1 or count > self._bytes:
            raise misfit(self._index)
        for number in range(count >> 1):
            if (yield from self._sized()) < 0:
                raise misfit(self._index)
            yield from self._sized()
            if number % SLICE_RECORDS == SLICE_RECORDS - 1:
                yield
        if self._bytes:
            raise misfit(self._index)
        found.note((delta >> 1) ^ -(delta & 1), offset, key_bytes)

    def _number(self, bits: int = INT_BITS) -> Generator[None, None, int]:
        """A varint, still zigzag."""
        needed = min(10, self._bytes)
        while len(self.plain) - self.at < needed:
            self.plain = bytes(self.plain[self.at :]) + bytes(self._next())
            self.at = 0
            yield
        before = self.at
        try:
            value, self.at = varint(self.plain, before, bits)
        except IndexError as error:
            raise misfit(self._index) from error
        self._bytes -= self.at - before
        return value

    def _sized(self) -> Generator[None, None, int]:
        """Go over a length and its bytes; -1 for none."""
        size = yield from self._number()
        if size & 1:
            if size != 1:
                raise misfit(self._index)
            return -1
        yield from self._skip(size >> 1)
        return size >> 1

    def _skip(self, size: int) -> Slices:
        self._bytes -= size
        if self._bytes < 0:
            raise misfit(self._index)
        while (here := len(self.plain) - self.at) < size:
            size -= here
            self.plain, self.at = self._next(), 0
            yield
        self.at += size

    def _next(self) -> Piece:
        more = next(self._left, None)
        if more is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"record {self._index} is not whole")
        return more


def misfit(index: int) -> KafkaError:
    """What to raise for a record whose fields do not fill it."""
    return KafkaError(ErrorCode.INVALID_RECORD, f"record {index} does not have the length of its fields")


def _not_next(index: int) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"record {index} is not at the offset that follows")


def varint(plain: Piece, at: int, bits: int = INT_BITS) -> tuple[int, int]:
    """A varint, still zigzag, and the position after it. Raises IndexError, KafkaError."""
    value = 0
    for shift in range(0, bits, 7):
        byte = plain[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise KafkaError(ErrorCode.INVALID_RECORD, "varint is too long")


def record_size(plain: Piece, at: int) -> tuple[int, int]:
    """A record's length and the position after it; one that has not come whole is larger than all that is here."""
    try:
        return varint(plain, at)
    except IndexError:
        return len(plain) + 1 << 1, at


def _end_of_headers(plain: Piece, at: int, end: int) -> int:
    """Where the headers of a record end that ends at `end`; only what ends there is right."""
    count, at = varint(plain, at)
    if count & 1 or count > end - at:
        return -1  # a negative number, or more than two bytes each can be
    for _ in range(count >> 1):
        key = plain[at]
        at += 1
        if key > 0x7F:
            key, at = varint(plain, at - 1)
        at += key >> 1
        value = plain[at]
        at += 1
        if value > 0x7F:
            value, at = varint(plain, at - 1)
        at += value >> 1
        if key & 1 or (value & 1 and value != 1):
            return -1
    return at


def is_sole_record(view: Piece, at: int) -> bool:
    """Whether one record without headers, at the base timestamp, fills `view` from `at` on: as most small batches are.

    At least seven bytes are there. False says nothing: `walk` knows.
    """
    end = len(view)
    size, more, delta, offset, key, after = _FIRST(view, at)
    if size < 0x80:
        at += 1
    elif more < 0x80:
        at += 2
        size = size & 0x7F | more << 7
        delta, offset, key = offset, key, after
    else:
        size, at = record_size(view, at)
        delta, offset, key = view[at + 1 : at + 4]
    if at + (size >> 1) != end or size & 1 or delta or offset:
        return False
    at += 4
    if key != 1:
        at += key >> 1
        if key & 1 or key > 0x7F or at >= end:
            return False
    value = view[at]
    at += 1
    if value > 0x7F:
        value = value & 0x7F | view[at] << 7
        at += 1
        if value > 0x3FFF:
            value, at = record_size(view, at - 2)
    if value & 1:
        return value == 1 and at + 1 == end and not view[at]
    at += value >> 1
    return at + 1 == end and not view[at]
