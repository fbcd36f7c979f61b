"""Tests that every row of the Api table has a message, a handler, a test of the handler, and golden vectors recorded on
Apache Kafka."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from kpybroker.wire.api import API, Api, by_name
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.rpc import api_versions

TESTS = Path(__file__).parent
HANDLERS = TESTS.parent / "kpybroker" / "handlers"
GOLDEN = TESTS / "golden"
LATEST = by_name["ApiVersions"].max

each_row = pytest.mark.parametrize("api", API, ids=lambda api: api.name)


def test_rows_are_unique_and_in_order() -> None:
    keys = [api.key for api in API]
    assert keys == sorted(set(keys))
    assert len(by_name) == len(API)


@each_row
def test_row_has_its_message(api: Api) -> None:
    assert api.min <= api.max
    assert api.request().__class__.__module__ == api.response().__class__.__module__


@each_row
def test_row_has_its_handler(api: Api) -> None:
    assert (HANDLERS / f"{api.module}.py").exists(), f"{api.name} is advertised and nobody handles it"
    assert callable(importlib.import_module(f"kpybroker.handlers.{api.module}").handle)


@each_row
def test_row_has_its_test(api: Api) -> None:
    assert (TESTS / "handlers" / f"test_{api.module}.py").exists()


@each_row
def test_row_has_its_golden_vectors(api: Api) -> None:
    file = GOLDEN / f"{api.module}.json"
    assert file.exists(), f"no golden vectors of {api.name}: python -m oracle.record"
    recorded = {said["version"] for said in json.loads(file.read_text())}
    wanted = {version for version in (api.min, api.flexible, api.max) if api.min <= version <= api.max}
    assert wanted <= recorded, f"{api.name}: versions {sorted(wanted - recorded)} are not recorded"


@each_row
def test_row_advertises_the_same_versions_as_kafka(api: Api) -> None:
    at = "api_versions" if "broker" in api.listens.value else "api_versions_at_controller"
    exchanges = json.loads((GOLDEN / f"{at}.json").read_text())
    said = next(each for each in exchanges if each["version"] == LATEST)
    response = parse(api_versions.Response, said["version"], bytes.fromhex(said["response"]))
    assert api.advertised in [(row.min_version, row.max_version) for row in response.api_keys if row.api_key == api.key]


def test_every_exception_is_explained() -> None:
    assert all(api.note for api in API if api.advertise_from is not None)


def test_no_message_or_handler_without_a_row() -> None:
    modules = {api.module for api in by_name.values()}
    for folder in (HANDLERS, TESTS.parent / "kpybroker" / "wire" / "rpc"):
        answering = {file.stem for file in folder.glob("*.py") if "\ndef handle(" in file.read_text()}
        answering |= {file.stem for file in folder.glob("*.py") if "\nasync def handle(" in file.read_text()}
        declared = {file.stem for file in folder.glob("*.py") if "\nclass Request" in file.read_text()}
        assert answering | declared <= modules
