"""The records of a batch without making objects of them: a walk over their lengths.

Layout of a record: length varint (of what follows), attributes int8, timestamp delta varint, offset delta varint, key
and value (length varint, -1 for none; bytes), number of headers varint, headers (key and value as above). Varints are
zigzag. Source: KIP-98, "Message format".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kpybroker.errors import ErrorCode, KafkaError

_VARINT_BITS = 70
"""Ten bytes, as much as a varint of 64 bits takes."""
RECORDS_LIMIT = 1 << 20
"""Of one walk: offset deltas of more than three bytes are not expected."""
HEADERS_LIMIT = 200_000
"""Of all records of one walk together."""


@dataclass(slots=True)
class Walk:
    """What to look for in the records of a batch, and what was found; a record is told by its index."""

    earliest: int
    latest: int
    """Bounds of the timestamp deltas, in milliseconds."""
    newest: int = -(1 << 63)
    """The largest timestamp delta."""
    without_key: list[int] = field(default_factory=list)
    out_of_time: list[tuple[int, int]] = field(default_factory=list)
    """Index and timestamp delta of those that are not within the bounds."""
    headers: int = 0
    """How many there are, of all records."""


def walk(plain: bytes, count: int, earliest: int, latest: int) -> Walk:
    """Walk over `count` records (at most RECORDS_LIMIT), each checked for its form.

    `earliest` and `latest` bound their timestamp deltas, in milliseconds.

    Raises KafkaError: INVALID_RECORD for bytes that are not these records, or whose offsets do not follow one another;
    MESSAGE_TOO_LARGE for more than HEADERS_LIMIT headers.
    """
    assert count <= RECORDS_LIMIT, "whoever walks has a limit"
    found = Walk(earliest, latest)
    try:
        end = _walk(found, plain, count)
    except IndexError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"fewer than {count} records in {len(plain)} bytes") from error
    if end != len(plain):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{len(plain) - end} bytes after the last record")
    return found


def _walk(found: Walk, plain: bytes, count: int) -> int:
    """Where the records end. Short varints are taken apart in place: calls would cost more than all the rest."""
    earliest, latest, newest = found.earliest, found.latest, found.newest
    at = 0
    for expected in range(0, 2 * count, 2):
        size = plain[at]
        at += 1
        if size > 0x7F:
            size = size & 0x7F | plain[at] << 7
            at += 1
            if size > 0x3FFF:
                size, at = _varint(plain, at - 2)
        end = at + (size >> 1)
        delta = plain[at + 1]
        at += 2
        if delta > 0x7F:
            delta = delta & 0x7F | plain[at] << 7
            at += 1
            if delta > 0x3FFF:
                delta, at = _varint(plain, at - 2)
        delta = (delta >> 1) ^ -(delta & 1)
        if delta > newest:
            newest = delta
        if not earliest <= delta <= latest:
            found.out_of_time.append((expected >> 1, delta))
        offset = plain[at]
        at += 1
        if offset > 0x7F:
            offset = offset & 0x7F | plain[at] << 7
            at += 1
            if offset > 0x3FFF:
                offset = offset & 0x3FFF | plain[at] << 14
                at += 1
        if offset != expected:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"record {expected >> 1} is not at the offset that follows")
        key = plain[at]
        at += 1
        if key & 1:
            found.without_key.append(expected >> 1)
        elif key > 0x7F:
            key, at = _varint(plain, at - 1)
        at += key >> 1
        value = plain[at]
        at += 1
        if value > 0x7F:
            value = value & 0x7F | plain[at] << 7
            at += 1
            if value > 0x3FFF:
                value, at = _varint(plain, at - 2)
        at += value >> 1
        at = _end_of_headers(found, plain, at, end) if plain[at] else at + 1
        # every length moved `at` forward: ending here, no field has left its record. An odd length is negative
        if at != end or size & 1 or (key & 1 and key != 1) or (value & 1 and value != 1):
            raise _invalid(expected)
    found.newest = newest
    return at


def _invalid(expected: int) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"record {expected >> 1} does not have the length of its fields")


def _varint(plain: bytes, at: int) -> tuple[int, int]:
    """A varint, still zigzag, and the position after it. Raises IndexError, KafkaError."""
    value = 0
    for shift in range(0, _VARINT_BITS, 7):
        byte = plain[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise KafkaError(ErrorCode.INVALID_RECORD, "varint is too long")


def _end_of_headers(found: Walk, plain: bytes, at: int, end: int) -> int:
    """Where the headers of a record end that ends at `end`; only what ends there is right."""
    count, at = _varint(plain, at)
    if count & 1 or count > end - at:
        return -1  # a negative number, or more than two bytes each can be
    found.headers += count >> 1
    if found.headers > HEADERS_LIMIT:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"more than {HEADERS_LIMIT} headers in one batch")
    for _ in range(count >> 1):
        key = plain[at]
        at += 1
        if key > 0x7F:
            key, at = _varint(plain, at - 1)
        at += key >> 1
        value = plain[at]
        at += 1
        if value > 0x7F:
            value, at = _varint(plain, at - 1)
        at += value >> 1
        if key & 1 or (value & 1 and value != 1):
            return -1
    return at
