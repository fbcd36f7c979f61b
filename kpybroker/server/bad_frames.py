"""Why the first bytes of a frame are no size, for the line about its refusal: often the peer speaks something else."""

from __future__ import annotations

from struct import unpack
from typing import Any

HEADER_BYTES_MIN = 8
TLS_HANDSHAKE, TLS_MAJOR = 0x16, 3
"""The first byte of a record with a ClientHello, and the second, of all versions since SSL 3 (RFC 8446, 5.1)."""
HTTP = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"CONN", b"PATC", b"PRI ")
"""How requests begin; PRI is HTTP/2."""


def why_no_frame(first: Any, limit: int) -> str:
    """What these four bytes begin, and what to do about it where that is known. `limit` is the largest size."""
    begin = bytes(first)
    if begin[0] == TLS_HANDSHAKE and begin[1] == TLS_MAJOR:
        return (
            "it began with a TLS ClientHello, and this listener speaks PLAINTEXT; set security.protocol=PLAINTEXT in "
            "the client"
        )
    if begin in HTTP:
        return (
            f"it began with {begin.decode()!r}, as HTTP does, and this listener speaks Kafka's protocol; "
            "kpybroker.http.port serves /metrics, /healthz and /readyz"
        )
    return f"frame size {unpack('>i', begin)[0]} is not between {HEADER_BYTES_MIN} and {limit} bytes"
