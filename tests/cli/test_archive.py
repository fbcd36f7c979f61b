"""Tests of the errors of `kpybroker archive` that occur without Spark; `compat_tests/test_archive.py` has the other
tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from kpybroker.archive.history import ArchiveHistory, name_of
from kpybroker.archive.manifest import encode
from kpybroker.archive.planning import Range
from tests.archive.writing import manifest_of
from tests.cli.shell import Shell


def test_a_missing_topic_is_refused(shell: Shell, topic: str, tmp_path: Path) -> None:
    told = shell("archive", topic, "--to", str(tmp_path / "new"))
    assert (told.code, told.out) == (1, "")
    assert told.err.startswith(f"kpybroker: there is no topic {topic};")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_topic_is_archived_at_once(shell: Shell, topic: str, tmp_path: Path) -> None:
    """The partitions are recorded, so that records which arrive and are deleted before the next run are reported."""
    shell("topics", "create", topic)
    told = shell("archive", topic, "--to", str(tmp_path / "new"), "--json")
    assert (told.code, told.err) == (0, "")
    assert [(row["partition"], row["to"], row["files"]) for row in json.loads(told.out)] == [(0, 0, 0)]
    told = shell("archive", "copy", topic, "--to", str(tmp_path / "new"))
    assert (told.code, told.err) == (0, "")
    assert told.out == "nothing new: the archive has all records of the topics\n"


def test_files_of_others_are_never_deleted(shell: Shell, topic: str, tmp_path: Path) -> None:
    """A folder without a manifest is not an archive; other content in an archive is reported."""
    mine = tmp_path / "data" / "run=00000001-0123456789ab" / "customers.csv"
    mine.parent.mkdir(parents=True)
    mine.touch()
    told = shell("archive", "clean", str(tmp_path))
    assert (told.code, mine.exists()) == (1, True)
    assert "has no archive" in told.err
    shell("topics", "create", topic)
    assert shell("archive", topic, "--to", str(tmp_path)).code == 0
    other = tmp_path / "data" / "raw" / "customers.csv"
    other.parent.mkdir()
    other.touch()
    for command in ["clean", str(tmp_path)], [topic, "--to", str(tmp_path)]:
        told = shell("archive", *command)
        assert (told.code, other.exists(), mine.exists()) == (1, True, True)
        assert "data/raw does not belong to an archive" in told.err
    shutil.rmtree(other.parent)
    assert shell("archive", "clean", str(tmp_path)).out == "deleted 1 files of unfinished runs\n"
    assert not mine.exists()


def test_an_unwritable_folder_is_reported_before_spark_starts(shell: Shell, topic: str, tmp_path: Path) -> None:
    shell("topics", "create", topic)
    shell("produce", topic, stdin=b"line\n")
    told = shell("archive", topic, "--to", "/proc/archive")
    assert (told.code, told.out) == (1, "")
    assert told.err.startswith("kpybroker: the archive's folder cannot be used: ")
    assert "/proc/archive" in told.err


def test_archives_that_cannot_be_used_are_refused_and_left_alone(shell: Shell, topic: str, tmp_path: Path) -> None:
    shell("topics", "create", topic)
    shell("produce", topic, stdin=b"line\n")
    manifest = encode(manifest_of(ArchiveHistory(), {(topic, 0): Range(0, 0, 1)}, "a"))[0]
    path = tmp_path / name_of(1)
    path.parent.mkdir()
    for content, code, complaint in (
        (manifest, 1, "is an archive of the cluster cluster-a, but this is"),
        (manifest[:-10], 1, "is invalid: it is incomplete"),
    ):
        path.write_bytes(content)
        for command in [topic, "--to", str(tmp_path)], ["copy", topic, "--to", str(tmp_path)]:
            told = shell("archive", *command)
            assert (told.code, told.out) == (code, "")
            assert complaint in told.err
            assert told.err.count("\n") == 1
        assert path.read_bytes() == content
        assert sorted(tmp_path.iterdir()) == [path.parent]


def test_arguments_are_checked(shell: Shell, topic: str, tmp_path: Path) -> None:
    for arguments, complaint in (
        ([topic], "--to"),
        ([topic, "--to", str(tmp_path), "--isolation", "some"], "write read_committed or read_uncommitted"),
        ([topic, "--to", str(tmp_path), "--conf", "nothing"], "write NAME=VALUE"),
        (["replay", str(tmp_path), topic, "--into", topic, "--from-time", "soon"], "cannot read the time"),
        (["replay", str(tmp_path), topic, "--into", topic, "--from-offset", str(2**63)], "offsets go up to"),
    ):
        told = shell("archive", *arguments)
        assert (told.code, told.out) == (2, "")
        assert complaint in told.err
    told = shell("archive", "verify", str(tmp_path))
    assert (told.code, told.err) == (1, f"kpybroker: {tmp_path.as_uri()} has no archive\n")
