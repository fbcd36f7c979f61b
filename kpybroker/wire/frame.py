"""Parses and encodes the part of a frame before the message: the size, and the request or response header.

Request header v1 ends with the client id; v2 (flexible versions) adds tagged fields. Response header v0 is the
correlation id; v1 adds tagged fields. The response to ApiVersions always has v0, since the client does not know the
broker's versions yet (KIP-511). Source: the Kafka protocol guide, "Request/Response Headers".
"""

from __future__ import annotations

from struct import Struct, error
from typing import Any, Final, NamedTuple

from kpybroker.errors import ErrorCode, MalformedFrame
from kpybroker.wire.api import API_VERSIONS, Api, by_key
from kpybroker.wire.codec.codec import merge, pieces_of
from kpybroker.wire.codec.primitives import refuse, skip_tagged

_REQUEST: Final = Struct(">hhih")
_SIZED_REQUEST: Final = Struct(">ihhih")
_RESPONSE_V0: Final = Struct(">ii")
_RESPONSE_V1: Final = Struct(">iix")
_CORRELATION: Final = Struct(">i")
_UNSUPPORTED: Final = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


class RequestHeader(NamedTuple):
    """The API key and version of a request, its client id and its correlation id."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def skip_tags(data: Any, pos: int) -> int:
    """The position after the tagged fields at `pos`. Headers have no known tagged fields. Raises MalformedFrame."""
    try:
        return skip_tagged(data, pos) if data[pos] else pos + 1
    except IndexError:
        refuse("the frame ends inside its header")


def parse_request_header(view: Any) -> tuple[RequestHeader, int]:
    """The header of a request frame (without its size) and the position of the message. Raises MalformedFrame.

    For an unknown API key, the header is parsed as well, but its tagged fields are not skipped.
    """
    try:
        key, version, correlation_id, client_bytes = _REQUEST.unpack_from(view)
        pos = _REQUEST.size
        client_id = None
        if client_bytes >= 0:
            pos += client_bytes
            client_id = str(view[_REQUEST.size : pos], "utf-8")
            if pos > len(view):
                refuse("the client id is longer than the frame")
    except (error, UnicodeDecodeError) as reason:
        raise MalformedFrame(f"request header: {reason}") from None
    api = by_key.get(key)
    if api is not None and version >= api.flexible:
        pos = skip_tags(view, pos)
    return RequestHeader(key, version, correlation_id, client_id), pos


def parse_response_header(view: Any, api: Api, version: int) -> tuple[int, int]:
    """The correlation id of a response frame (without its size) and the position of the message."""
    if len(view) < 4:
        refuse(f"a response of {len(view)} bytes")
    (correlation_id,) = _CORRELATION.unpack_from(view)
    return correlation_id, skip_tags(view, 4) if version >= api.flexible and api is not API_VERSIONS else 4


def response_version(view: Any, api: Api, version: int) -> int:
    """The version of the response to a request of this version. It is the same, except for ApiVersions, whose requests
    of unknown versions are answered with v0 and UNSUPPORTED_VERSION (KIP-511)."""
    is_refusal = api is API_VERSIONS and view[4:6] == _UNSUPPORTED
    return 0 if is_refusal else version


def encode_response(correlation_id: int, api: Api, version: int, response: Any) -> list[bytes | memoryview]:
    """The buffers of a whole response frame, including its size. Large records are not copied.

    Raises ValueError, with the name of the field, if the response cannot be encoded because of a bug in its handler.
    """
    pieces, large = pieces_of(response, version)
    flexible = version >= api.flexible and api is not API_VERSIONS
    pack = _RESPONSE_V1.pack if flexible else _RESPONSE_V0.pack
    header_bytes = 5 if flexible else 4
    if not large:
        body = b"".join(pieces)
        return [pack(header_bytes + len(body), correlation_id) + body]
    pieces[0] = pack(header_bytes + sum(map(len, pieces)), correlation_id) + pieces[0]
    return merge(pieces, large)


def response_head(correlation_id: int, api: Api, version: int) -> bytes:
    """The header of a response frame, without the size."""
    head = _CORRELATION.pack(correlation_id)
    return head + b"\0" if version >= api.flexible and api is not API_VERSIONS else head


def request_head(correlation_id: int, api: Api, version: int, client_id: str | None) -> bytes:
    """The header of a request frame, without the size."""
    client = b"" if client_id is None else client_id.encode()
    head = _REQUEST.pack(api.key, version, correlation_id, -1 if client_id is None else len(client))
    return head + client + (b"\0" if version >= api.flexible else b"")


def encode_request(
    correlation_id: int, api: Api, version: int, request: Any, client_id: str | None = None
) -> list[bytes | memoryview]:
    """The buffers of a whole request frame, including its size. Raises ValueError as `encode_response` does."""
    client = b"" if client_id is None else client_id.encode()
    client_bytes = -1 if client_id is None else len(client)
    pieces, large = pieces_of(request, version)
    tags = b"\0" if version >= api.flexible else b""
    size_bytes = _REQUEST.size + len(client) + len(tags) + sum(map(len, pieces))
    head = _SIZED_REQUEST.pack(size_bytes, api.key, version, correlation_id, client_bytes)
    first = head + client + tags
    return merge([first, *pieces], [index + 1 for index in large])
