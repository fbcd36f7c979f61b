"""The bytes that Apache Kafka sent stay the same when they are parsed and built again (recorded by
oracle/record.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kpybroker.wire.api import API
from kpybroker.wire.codec.codec import build, parse
from tests.wire import interpreted

GOLDEN = Path(__file__).parent.parent / "golden"
BY_MODULE = {api.module: api for api in API}
BY_MODULE["api_versions_at_controller"] = BY_MODULE["api_versions"]
FILES = sorted(GOLDEN.glob("*.json"))


def test_vectors_are_there() -> None:
    assert FILES, f"no golden vectors in {GOLDEN}: python -m oracle.record"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_bytes_survive_parsing_and_building(file: Path) -> None:
    api = BY_MODULE[file.stem]
    for said in json.loads(file.read_text()):
        assert_survival(api.request, said["version"], bytes.fromhex(said["request"]), said["note"])
        assert_survival(api.response, said["version"], bytes.fromhex(said["response"]), said["note"])


def assert_survival(cls: Any, version: int, data: bytes, note: str) -> None:
    message = parse(cls, version, data)
    assert build(message, version) == data, note
    assert interpreted.parse(cls, version, data) == message, note
