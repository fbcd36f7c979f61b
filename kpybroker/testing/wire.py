"""Decodes and encodes Kafka's protocol, for tests and dumps of traffic.

A frame is a request or a response without the four bytes before it that contain its size; `frames` splits a stream.
Fields are plain values with the names of Kafka's protocol in snake_case. All functions raise ValueError with the reason
for bytes, names and versions that they cannot handle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kpybroker.errors import KafkaError, MalformedFrame
from kpybroker.similar_names import meant
from kpybroker.wire import frame as framing
from kpybroker.wire import plain
from kpybroker.wire.api import API, Api, by_key, by_name
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.records.batch import Record, read_records, whole_batches

FRAME_BYTES_MAX = 256 * 1024 * 1024
_SIZE_BYTES = 4


class DecodedRequest(NamedTuple):
    """A request."""

    api: str
    version: int
    correlation_id: int
    client_id: str | None
    fields: dict[str, Any]


class DecodedResponse(NamedTuple):
    """A response, which itself contains neither its API nor its version."""

    correlation_id: int
    fields: dict[str, Any]
    errors: list[str]
    """The names of all error codes, each once, without NONE."""


def decode_request(frame: bytes) -> DecodedRequest:
    """Decode a request."""
    try:
        header, at = framing.parse_request_header(frame)
        if header.api_key not in by_key:
            raise ValueError(f"no request has the api key {header.api_key}; does the frame begin with its size?")
        row = _row(by_key[header.api_key].name, header.api_version)
        message = parse(row.request, header.api_version, frame, at)
    except MalformedFrame as error:
        raise ValueError(f"it is not a request: {error}") from None
    fields = plain.as_plain(message, header.api_version)
    return DecodedRequest(row.name, header.api_version, header.correlation_id, header.client_id, fields)


def decode_response(frame: bytes, api: str, version: int) -> DecodedResponse:
    """Decode the response to a request of this API and version."""
    row = _row(api, version)
    try:
        correlation_id, at = framing.parse_response_header(frame, row, version)
        version = framing.response_version(frame, row, version)
        fields = plain.as_plain(parse(row.response, version, frame, at), version)
    except MalformedFrame as error:
        raise ValueError(f"it is not a response to {api} v{version}: {error}") from None
    return DecodedResponse(correlation_id, fields, plain.errors_in(fields))


def encode_request(
    api: str, version: int, fields: Mapping[str, Any], *, correlation_id: int = 1, client_id: str | None = None
) -> bytes:
    """The frame of a request. Fields that are left out have the defaults of the protocol."""
    row = _row(api, version)
    message = plain.from_plain(row.request, version, fields)
    return b"".join(framing.encode_request(correlation_id, row, version, message, client_id))[_SIZE_BYTES:]


def encode_response(api: str, version: int, fields: Mapping[str, Any], *, correlation_id: int = 1) -> bytes:
    """The frame of a response. Fields that are left out have the defaults of the protocol."""
    row = _row(api, version)
    message = plain.from_plain(row.response, version, fields)
    return b"".join(framing.encode_response(correlation_id, row, version, message))[_SIZE_BYTES:]


def frames(stream: bytes) -> Iterator[bytes]:
    """The frames in the bytes of one direction of a connection."""
    at = 0
    while at < len(stream):
        size_bytes = int.from_bytes(stream[at : at + _SIZE_BYTES], "big")
        end = at + _SIZE_BYTES + size_bytes
        if at + _SIZE_BYTES > len(stream) or size_bytes > FRAME_BYTES_MAX or end > len(stream):
            raise ValueError(f"at byte {at} there is no whole frame: {len(stream) - at} bytes are left")
        yield stream[at + _SIZE_BYTES : end]
        at = end


def records(batches: bytes) -> list[Record]:
    """The records in a `records` field of a Produce request or a Fetch response, decompressed. A batch that is cut off
    at the end, as in Fetch responses, is left out."""
    try:
        return [record for batch in whole_batches(batches) for record in read_records(batch)]
    except KafkaError as error:
        raise ValueError(f"it is not a record batch: {error}") from None


def _row(api: str, version: int) -> Api:
    """The API. Raises ValueError if it does not exist in this version."""
    known = [each.name for each in API]
    if api not in known:
        raise ValueError(f"Kafka has no {api!r} requests{meant(api, known)}")
    row = by_name[api]
    if not row.min <= version <= row.max:
        raise ValueError(f"{api} v{version}: versions {row.min} to {row.max} are known")
    return row
