"""Frames: encoded frames are parsed back, and invalid headers are refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.errors import MalformedFrame
from kpybroker.wire.api import API, NEVER, Api, by_name
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.frame import (
    RequestHeader,
    encode_request,
    encode_response,
    parse_request_header,
    parse_response_header,
)
from kpybroker.wire.rpc import fetch, produce

NEAR_FLEXIBLE = [
    (api, version)
    for api in API
    for version in sorted({api.min, api.flexible - 1, api.flexible, api.max})
    if api.min <= version <= api.max
]


def unframed(buffers: list[bytes | memoryview]) -> memoryview:
    frame = b"".join(buffers)
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    return memoryview(frame)[4:]


@pytest.mark.parametrize(("api", "version"), NEAR_FLEXIBLE, ids=lambda each: getattr(each, "name", str(each)))
@pytest.mark.parametrize("client_id", [None, "", "kpybroker-ä"])
def test_a_request_is_parsed_back(api: Api, version: int, client_id: str | None) -> None:
    frame = unframed(encode_request(7, api, version, api.request(), client_id))
    header, pos = parse_request_header(frame)
    assert header == RequestHeader(api.key, version, 7, client_id)
    assert parse(api.request, version, frame, pos) == parse(api.request, version, frame[pos:])


@pytest.mark.parametrize(("api", "version"), NEAR_FLEXIBLE, ids=lambda each: getattr(each, "name", str(each)))
def test_a_response_is_parsed_back(api: Api, version: int) -> None:
    frame = unframed(encode_response(-7, api, version, api.response()))
    correlation_id, pos = parse_response_header(frame, api, version)
    assert correlation_id == -7
    assert pos == (5 if version >= api.flexible and api.name != "ApiVersions" else 4)
    parse(api.response, version, frame, pos)


def test_large_records_are_not_copied() -> None:
    records = bytes(100_000)
    partition = fetch.PartitionData(records=memoryview(records))
    response = fetch.Response(responses=[fetch.FetchableTopicResponse(partitions=[partition])])
    buffers = encode_response(1, by_name["Fetch"], 13, response)
    assert [each is partition.records for each in buffers] == [False, True, False]
    assert parse(fetch.Response, 13, unframed(buffers), 5) == response

    data = produce.PartitionProduceData(records=records)
    request = produce.Request(topic_data=[produce.TopicProduceData(partition_data=[data])])
    buffers = encode_request(1, by_name["Produce"], 9, request, "me")
    assert [each is records for each in buffers] == [False, True, False]
    frame = unframed(buffers)
    assert parse(produce.Request, 9, frame, parse_request_header(frame)[1]) == request


@given(st.binary(max_size=40))
def test_any_bytes_have_a_header_or_are_refused(data: bytes) -> None:
    try:
        _, pos = parse_request_header(memoryview(data))
    except MalformedFrame:
        return
    assert pos <= len(data)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00\x03\x00\x01\x00\x00\x00\x01\x00",
        b"\x00\x03\x00\x01\x00\x00\x00\x01\x00\x05abcd",
        b"\x00\x03\x00\x01\x00\x00\x00\x01\x00\x01\xff",
        b"\x00\x03\x00\x09\x00\x00\x00\x01\xff\xff",
        b"\x00\x03\x00\x09\x00\x00\x00\x01\xff\xff\x01\x00\x05a",
    ],
)
def test_broken_headers_are_refused(frame: bytes) -> None:
    with pytest.raises(MalformedFrame):
        parse_request_header(memoryview(frame))


def test_unknown_key_has_a_header() -> None:
    frame = struct.pack(">hhih", 999, 0, 5, -1)
    assert parse_request_header(memoryview(frame)) == (RequestHeader(999, 0, 5, None), 10)


def test_short_response_is_refused() -> None:
    for frame in (b"", b"\x00\x00\x00", b"\x00\x00\x00\x01"):
        with pytest.raises(MalformedFrame):
            parse_response_header(memoryview(frame), by_name["Metadata"], 9)


def test_never_is_above_all_versions() -> None:
    assert all(api.flexible == NEVER or api.min <= api.flexible <= api.max or api.flexible < api.min for api in API)
