"""Tests that every API can refuse a whole request: the client receives a response for every kind of error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.handlers import refused
from kpybroker.server.node import Node
from kpybroker.storage.log.slices import AT_ONCE, Work
from kpybroker.wire.api import API, Api, by_name
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.codec.layout import layout
from kpybroker.wire.frame import encode_response
from kpybroker.wire.rpc import api_versions
from tests.asking import make, produced
from tests.conftest import WithBroker
from tests.handlers.test_produce_validation import large
from tests.server.many_elements import arrays_of, request_with_many

REFUSAL = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no time")


def codes_in(message: Any) -> Iterator[int]:
    """All error codes of a response, at any depth."""
    for name in getattr(message, "__slots__", ()) or vars(message):
        value = getattr(message, name)
        if name == "error_code":
            yield value
        for each in value if isinstance(value, list) else [value]:
            if type(each).__module__.startswith("kpybroker.wire.rpc"):
                yield from codes_in(each)


@pytest.mark.parametrize("api", API, ids=lambda api: api.name)
def test_every_part_of_a_request_is_refused(api: Api) -> None:
    for path in [*arrays_of(layout(api.request, api.max)), ()]:
        request = parse(api.request, api.max, request_with_many(api, path, 1), 0)
        if api.name == "Produce":
            request.acks = 1
        response = refused(api, request, REFUSAL)
        assert encode_response(1, api, api.max, response)
        codes = set(codes_in(response))
        assert codes <= {ErrorCode.NONE, REFUSAL.code}
        if path and not any(
            other[: len(path)] == path for other in arrays_of(layout(api.request, api.max)) if other != path
        ):
            assert REFUSAL.code in codes, f"{path} is requested, but has no error in the response"


def test_a_refusal_with_acks_0_closes_the_connection() -> None:
    with pytest.raises(MalformedFrame, match="acks=0 was refused: REQUEST_TIMED_OUT"):
        refused(by_name["Produce"], produced("t", b"x", acks=0), REFUSAL)


def test_a_produce_that_is_not_validated_in_time(with_broker: WithBroker) -> None:
    """It receives a response, and so does the next request of its connection."""
    over = threading.Event()

    def waits() -> Work[None]:
        yield over.wait

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        works = [asyncio.ensure_future(node.broker.storage.log_dirs.sliced_work.run(waits)) for _ in range(AT_ONCE)]
        await asyncio.sleep(0)
        request = produced("t", records=large())
        request.timeout_ms = 20
        asked = asyncio.ensure_future(peer.ask("Produce", request, version=9))
        behind = await peer.ask("ApiVersions", api_versions.Request(), version=0)
        answer = (await asked).responses[0].partition_responses[0]
        over.set()
        await asyncio.gather(*works)
        assert (answer.error_code, behind.error_code) == (ErrorCode.REQUEST_TIMED_OUT, 0)

    try:
        with_broker(scenario)
    finally:
        over.set()
