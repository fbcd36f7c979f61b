"""Tests of oracle/record.py, which records golden vectors, without Kafka: the played scenes and the written files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kpybroker.wire.api import API, by_name
from oracle import record
from oracle.plays import PLAYS, apis_named, plays_of
from oracle.record import Exchange

VECTOR: Exchange = {"version": 0, "request": "00", "response": "01", "note": "n"}


@pytest.mark.parametrize(
    ("names", "plays"),
    [
        (["DescribeProducers"], ["clients"]),
        (["describe_producers"], ["clients"]),
        (["AssignReplicasToDirs"], ["directories"]),
        (["Vote"], ["quorum"]),
        (["ListGroups"], ["clients", "groups", "shares", "streams"]),
        (["CreateAcls", "AddRaftVoter"], ["cluster", "quorum", "acls", "authorized operations"]),
    ],
)
def test_one_api_needs_the_scenes_that_name_it(names: list[str], plays: list[str]) -> None:
    assert [play.name for play in plays_of(apis_named(names))] == plays


def test_all_apis_need_all_scenes() -> None:
    assert plays_of(API) == PLAYS
    assert all(plays_of([api]) for api in API)


def test_an_unknown_name_is_refused_with_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        record.main(["--only", "Fetch", "DescribeProducer"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "no such API: DescribeProducer; there are AddOffsetsToTxn, AddPartitionsToTxn" in told
    assert all(api.name in told for api in API)


def test_help_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        record.main(["--help"])
    assert ended.value.code == 0
    assert "--only API [API ...]" in capsys.readouterr().out


def test_only_the_files_of_the_named_apis_are_written(tmp_path: Path) -> None:
    before = {name: f"{name} before" for name in ("fetch", "produce", "api_versions", "api_versions_at_controller")}
    for name, text in before.items():
        (tmp_path / f"{name}.json").write_text(text)
    said = {name: [VECTOR, VECTOR] for name in before}
    assert record.write(said, [by_name["Fetch"]], tmp_path) == ["fetch"]
    after = {file.stem: file.read_text() for file in tmp_path.iterdir()}
    assert json.loads(after.pop("fetch")) == [VECTOR, VECTOR]
    assert after == {name: text for name, text in before.items() if name != "fetch"}
    assert record.write(said, [by_name["ApiVersions"]], tmp_path) == ["api_versions", "api_versions_at_controller"]
    assert (tmp_path / "produce.json").read_text() == "produce before"


def test_an_api_without_a_scene_is_reported() -> None:
    said = {"produce": [VECTOR], "api_versions_at_controller": [VECTOR]}
    assert record.unrecorded(said, [by_name[name] for name in ("Fetch", "Produce", "ApiVersions")]) == [
        "ApiVersions",
        "Fetch",
    ]
