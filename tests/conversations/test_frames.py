"""Every byte that Apache Kafka's nodes sent to each other stays the same when it is parsed and built again."""

from __future__ import annotations

from typing import Any

import pytest

from kpybroker.wire.codec.codec import build, parse
from oracle.conversations import SCENES
from tests.conversations.script import NAMES, Script
from tests.wire import interpreted


def test_every_scene_is_recorded() -> None:
    assert sorted(SCENES) == NAMES, "python -m oracle.conversations"


@pytest.mark.parametrize("name", NAMES)
def test_frames_survive_parsing_and_building(name: str) -> None:
    for exchange in Script(name).exchanges:
        assert_survival(exchange.api.request, exchange.version, exchange.request, str(exchange))
        if exchange.response is not None:
            assert_survival(exchange.api.response, exchange.version, exchange.response, str(exchange))


def assert_survival(cls: Any, version: int, data: bytes, what: str) -> None:
    message = parse(cls, version, data)
    assert build(message, version) == data, what
    assert interpreted.parse(cls, version, data) == message, what
