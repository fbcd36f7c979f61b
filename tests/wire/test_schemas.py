"""The declarations of messages are equal to Kafka's schemas: every field in every version, and every default."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from kpybroker.wire.api import API, NEVER
from kpybroker.wire.codec.layout import layout
from kpybroker.wire.codec.message import Structure, fields_of
from tests.wire.messages import MESSAGES, VERSIONS, versions
from tests.wire.schemas import Reader, default_of, described, schemas, snake


@pytest.mark.parametrize(("name", "version"), VERSIONS, ids=lambda each: str(each))
def test_layout_equals_the_schema(name: str, version: int) -> None:
    kind, _, *ours = described(layout(MESSAGES[name], version))
    kafkas = Reader(schemas()[name], version).tree
    assert (kind, name, *ours) == kafkas


@pytest.mark.parametrize("name", MESSAGES)
def test_versions_and_keys_equal_the_schema(name: str) -> None:
    cls, schema = MESSAGES[name], schemas()[name]
    unstable = schema.get("latestVersionUnstable", False) or schemas().get(name.replace("Response", "Request"), {}).get(
        "latestVersionUnstable", False
    )
    first, _, last = schema["validVersions"].partition("-")
    stable = range(int(first), int(last or first) + 1)
    assert versions(cls) in (stable, range(stable.start, stable.stop - 1) if unstable else stable)
    if schema["type"] in ("metadata", "coordinator-key"):
        assert cls._key == schema["apiKey"]


def test_every_stored_record_is_declared() -> None:
    kinds = {"metadata", "coordinator-key", "coordinator-value"}
    stored = {name for name, schema in schemas().items() if schema["type"] in kinds}
    assert stored <= set(MESSAGES)


def parts_in(annotation: Any) -> list[Any]:
    """The structures in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Structure):
        return [annotation]
    return [part for each in get_args(annotation) for part in parts_in(each)]


def assert_defaults(cls: Any, fields: list[Any], common: dict[str, Any], path: str) -> None:
    declared = {name: (annotation, said) for name, annotation, said in fields_of(cls)}
    for field in fields:
        name = snake(field["name"])
        if name not in declared:
            continue  # the field is in an unstable version; test_layout_equals_the_schema covers it
        annotation, said = declared[name]
        part = next(iter(parts_in(annotation)), None)
        assert said.default == default_of(field, part), f"{path}.{name}"
        if part is not None:
            inner = common.get(field["type"].removeprefix("[]")) or field["fields"]
            assert_defaults(part, inner, common, f"{path}.{name}")


@pytest.mark.parametrize("name", MESSAGES)
def test_defaults_equal_the_schema(name: str) -> None:
    schema = schemas()[name]
    common = {each["name"]: each["fields"] for each in schema.get("commonStructs", [])}
    assert_defaults(MESSAGES[name], schema["fields"], common, name)


@pytest.mark.parametrize("api", API, ids=lambda api: api.name)
def test_table_agrees_with_the_declarations(api: Any) -> None:
    request, response = schemas()[f"{api.name}Request"], schemas()[f"{api.name}Response"]
    assert request["apiKey"] == response["apiKey"] == api.key
    assert {api.min, api.max} <= set(versions(api.request)) & set(versions(api.response))
    assert api.listens.value == set(request["listeners"])
    first = None if api.flexible == NEVER else api.flexible
    assert api.request.first_flexible == api.response.first_flexible == first
