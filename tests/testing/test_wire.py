"""Laws of the decoder for tests: it inverts the encoder, reads what clients send, and refuses everything else."""

from __future__ import annotations

import pytest

from kpybroker.testing import wire
from kpybroker.wire.api import API, Api
from tests.asking import batch_of


@pytest.mark.parametrize("api", API, ids=lambda api: api.name)
def test_the_decoder_inverts_the_encoder(api: Api) -> None:
    for version in range(api.min, api.max + 1):
        request = wire.decode_request(wire.encode_request(api.name, version, {}, correlation_id=7, client_id="shop"))
        assert request[:4] == (api.name, version, 7, "shop")
        again = wire.encode_request(api.name, version, request.fields, correlation_id=7, client_id="shop")
        assert wire.decode_request(again) == request
        response = wire.decode_response(wire.encode_response(api.name, version, {}), api.name, version)
        assert response.correlation_id == 1
        assert wire.encode_response(api.name, version, response.fields) == wire.encode_response(api.name, version, {})


def test_records_are_decoded() -> None:
    batches = batch_of(b"a", b"b") + batch_of(b"c")
    assert [record.value for record in wire.records(batches)] == [b"a", b"b", b"c"]
    assert [record.value for record in wire.records(batches[:-1])] == [b"a", b"b"], "the last batch is cut off"
    assert wire.records(b"") == []
    with pytest.raises(ValueError, match="it is not a record batch"):
        wire.records(bytes(8) + (60).to_bytes(4, "big") + bytes(60))


def test_a_stream_is_split() -> None:
    sent = [wire.encode_request("Metadata", 9, {}), wire.encode_request("ApiVersions", 0, {})]
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in sent)
    assert list(wire.frames(stream)) == sent
    for size in range(1, len(stream)):
        if size != 4 + len(sent[0]):
            with pytest.raises(ValueError, match="there is no whole frame"):
                list(wire.frames(stream[:size]))


def test_the_refusal_of_an_unknown_version_is_decoded() -> None:
    frame = wire.encode_response("ApiVersions", 0, {"error_code": 35})
    assert wire.decode_response(frame, "ApiVersions", 4).errors == ["UNSUPPORTED_VERSION"]


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (b"", "it is not a request"),
        (bytes(4), "it is not a request"),
        (b"\0\0\0\x1a" + wire.encode_request("Metadata", 9, {}), "v26: versions 3 to 13 are known"),
        (b"\x7f\xff" + bytes(20), "no request has the api key 32767; does the frame begin with its size?"),
        (b"\0\x03\0\x63" + bytes(20), "Metadata v99: versions 0 to 13 are known"),
        (wire.encode_request("Metadata", 9, {})[:-1], "it is not a request"),
    ],
)
def test_what_is_not_a_request_is_refused(frame: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        wire.decode_request(frame)


def test_what_is_not_a_response_is_refused() -> None:
    with pytest.raises(ValueError, match=r"it is not a response to Metadata v9"):
        wire.decode_response(b"\0\0\0\1\0", "Metadata", 9)
    with pytest.raises(ValueError, match="Kafka has no 'Metadate' requests; did you mean Metadata"):
        wire.decode_response(b"", "Metadate", 9)
    with pytest.raises(ValueError, match="Metadata v99: versions 0 to 13 are known"):
        wire.encode_request("Metadata", 99, {})
    with pytest.raises(ValueError, match="topicz"):
        wire.encode_request("Metadata", 9, {"topicz": []})
