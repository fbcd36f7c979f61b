"""Error texts for refused frames. They detect from the first bytes whether the peer uses another protocol."""

from __future__ import annotations

from struct import unpack
from typing import Any

from kpybroker.wire.api import by_key

FRAME_BYTES_MAX = 32 * 1024 * 1024
"""The largest request of an API without `carries_bytes`.

100,000 topic names of the maximum length are 25 MB. Copying 100 MB would delay other requests.
"""
HEADER_BYTES_MIN = 8
TLS_HANDSHAKE, TLS_MAJOR = 0x16, 3
"""The first two bytes of a TLS record with a ClientHello, in all versions since SSL 3 (RFC 8446, section 5.1)."""
HTTP = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"CONN", b"PATC", b"PRI ")
"""The first four bytes of HTTP requests. `PRI ` begins an HTTP/2 connection."""


def why_no_frame(first: Any, limit: int) -> str:
    """The reason why these four bytes are not the length of a frame: the protocol that the peer seems to use, and the
    remedy if there is one. `limit` is the largest frame size."""
    begin = bytes(first)
    if begin[0] == TLS_HANDSHAKE and begin[1] == TLS_MAJOR:
        return (
            "it began with a TLS ClientHello, and this listener does not use TLS; set security.protocol=PLAINTEXT (or "
            "SASL_PLAINTEXT) in the client; between nodes, compare listener.security.protocol.map"
        )
    if begin in HTTP:
        return (
            f"it began with {begin.decode()!r}, as HTTP does, and this listener speaks Kafka's protocol; "
            "kpybroker.http.port serves /metrics, /healthz and /readyz"
        )
    return f"frame size {unpack('>i', begin)[0]} is not between {HEADER_BYTES_MIN} and {limit} bytes"


def why_too_large(size_bytes: int, begin: memoryview) -> str | None:
    """The reason why a frame is too large to be read; None if it is small enough. `size_bytes` includes the length
    field. `begin` contains the first bytes of the frame, starting with the length."""
    if size_bytes <= 4 + FRAME_BYTES_MAX:
        return None
    key = int(unpack(">h", begin[4:6])[0])
    api = by_key.get(key)
    if api is not None and api.carries_bytes:
        return None
    name = api.name if api is not None else f"a request with api key {key}"
    return f"{name} of {size_bytes - 4} bytes: without records a request has at most {FRAME_BYTES_MAX}"
