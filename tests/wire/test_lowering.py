"""The generated code gives the same results as the interpreted layout, for every message, every version and any
bytes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import MalformedFrame
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.codec.layout import layout
from kpybroker.wire.codec.parsing import COPY_BYTES
from tests.wire import interpreted
from tests.wire.messages import MESSAGES, VERSIONS
from tests.wire.values import arbitrary, mutated

WITH_RECORDS = {"ProduceRequest", "FetchResponse"}


def outcome(of: Any, cls: Any, version: int, data: Any) -> Any:
    """The result of a parser: the value, or MalformedFrame if it refuses the bytes."""
    try:
        return of(cls, version, data)
    except MalformedFrame:
        return MalformedFrame


def assert_agreement(name: str, version: int, random: Random, mutations: int) -> None:
    cls = MESSAGES[name]
    message = arbitrary(layout(cls, version), random)
    data = build(message, version)
    assert data == interpreted.build(message, version)
    assert parse(cls, version, data) == message
    assert interpreted.parse(cls, version, data) == message
    for _ in range(mutations):
        other = mutated(data, random)
        found, expected = outcome(parse, cls, version, other), outcome(interpreted.parse, cls, version, other)
        assert found == expected, f"{name} v{version}: {other.hex()}"


@pytest.mark.parametrize(("name", "version"), VERSIONS, ids=str)
def test_every_version_agrees(name: str, version: int) -> None:
    random = Random(f"{name} {version}")
    for _ in range(2):
        assert_agreement(name, version, random, mutations=4)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(VERSIONS), st.randoms(use_true_random=False))
def test_any_message_agrees(which: tuple[str, int], random: Random) -> None:
    assert_agreement(*which, random, mutations=3)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(VERSIONS), st.binary(max_size=60))
def test_any_bytes_agree(which: tuple[str, int], data: bytes) -> None:
    name, version = which
    cls = MESSAGES[name]
    assert outcome(parse, cls, version, data) == outcome(interpreted.parse, cls, version, data)


@pytest.mark.parametrize(("name", "version"), [each for each in VERSIONS if each[0] in WITH_RECORDS], ids=str)
def test_large_frames_agree(name: str, version: int) -> None:
    """Above a certain size, fields other than records are also read from the view of the frame."""
    random, cls, start = Random(f"{name} {version}"), MESSAGES[name], COPY_BYTES + 1
    for _ in range(3):
        data = build(arbitrary(layout(cls, version), random), version)
        for other in (data, mutated(data, random), mutated(data, random)):
            expected = outcome(interpreted.parse, cls, version, other)
            found = outcome(lambda *which: parse(*which, pos=start), cls, version, memoryview(bytes(start) + other))
            assert found == expected, f"{name} v{version}: {other.hex()}"
