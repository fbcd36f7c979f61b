"""Finds the number of iterations that a store requires to derive keys from its password, before any key is derived.

In DER, the iteration count follows the salt: `OCTET STRING, INTEGER` (PBEParameter, PBKDF2-params and MacData: RFC
7292, RFC 8018).
"""

from __future__ import annotations

from collections.abc import Iterator

INTEGER, OCTET_STRING, SEQUENCE, CONSTRUCTED = 0x02, 0x04, 0x30, 0x20
INDEFINITE = 0x80
LENGTH_BYTES_MAX = 4
NUMBER_BYTES_MAX = 16


def der_iterations(store: bytes) -> Iterator[int]:
    """The numbers that may be iteration counts. The iterator ends where the data is damaged."""
    data, at, before = memoryview(store), 0, 0
    while at + 2 <= len(data):
        tag, begin, size = data[at], *_length(data, at + 1)
        if begin > len(data):
            return
        content = data[begin : begin + size]
        if tag == INTEGER and before == OCTET_STRING:
            yield int.from_bytes(content[:NUMBER_BYTES_MAX], signed=True)
        before = tag
        at = begin if tag & CONSTRUCTED or (tag == OCTET_STRING and _holds_more(content)) else begin + size


def _length(data: memoryview, at: int) -> tuple[int, int]:
    """The offset and the size of an element's content. The size is 0 for an element of indefinite length, because its
    content marks its own end."""
    size = data[at]
    if size <= INDEFINITE:
        return at + 1, size & 0x7F
    more = min(size & 0x7F, LENGTH_BYTES_MAX)
    return at + 1 + (size & 0x7F), int.from_bytes(data[at + 1 : at + 1 + more])


def _holds_more(content: memoryview) -> bool:
    """Whether the content of an octet string is itself a sequence."""
    if len(content) < 2 or content[0] != SEQUENCE:
        return False
    begin, size = _length(content, 1)
    return content[1] == INDEFINITE or begin + size == len(content)
