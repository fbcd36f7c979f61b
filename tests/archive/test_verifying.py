"""Tests of the checks of `verify` that do not open files: each kind of damage is reported with its location."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpybroker.archive.history import ArchiveHistory, load
from kpybroker.archive.planning import Range, Topic
from kpybroker.archive.store import LocalStore, absolute
from kpybroker.archive.verifying import Verdict, look_at_folder, look_at_offsets
from tests.archive.writing import TOPIC_ID, write

ORDERS = ("orders", 0)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(absolute(str(tmp_path)))


@pytest.fixture
def history(store: LocalStore, tmp_path: Path) -> ArchiveHistory:
    history = load(store)
    for number, at in enumerate([Range(5, 5, 10), Range(10, 12, 20)]):
        history = write(store, tmp_path, history, {ORDERS: at}, f"run-{number}")
    return history


def looked_at(store: LocalStore, history: ArchiveHistory) -> Verdict:
    verdict = Verdict()
    look_at_folder(history, store.files("data"), verdict)
    return verdict


def test_an_empty_archive_has_no_faults(store: LocalStore, history: ArchiveHistory, tmp_path: Path) -> None:
    (tmp_path / "data/run=run-1/_SUCCESS").touch()
    (tmp_path / "data/run=run-1/.part.crc").touch()
    assert looked_at(store, history) == Verdict()


def test_missing_truncated_and_copied_files_are_faults(
    store: LocalStore, history: ArchiveHistory, tmp_path: Path
) -> None:
    one, two = (tmp_path / file.path for _, file in history.files())
    one.unlink()
    copy = two.with_name("copy.parquet")
    copy.write_bytes(two.read_bytes())
    two.write_bytes(b"")
    assert [fault.split(maxsplit=1) for fault in looked_at(store, history).faults] == [
        [str(one.relative_to(tmp_path)), "is missing: 5 records, offsets 5 to 9"],
        [str(two.relative_to(tmp_path)), "has 0 bytes, but should have 7"],
        [str(copy.relative_to(tmp_path)), "is in the folder of a run that did not write it: a copy of another file?"],
    ]


def test_files_of_killed_runs_are_not_faults(store: LocalStore, history: ArchiveHistory, tmp_path: Path) -> None:
    left = tmp_path / "data/run=00000003-0123456789ab/topic=orders/part.parquet"
    left.parent.mkdir(parents=True)
    left.touch()
    verdict = looked_at(store, history)
    assert verdict.faults == []
    assert verdict.remarks == ["1 files of unfinished runs, which readers ignore; `archive clean` deletes them"]


def test_rounds_without_their_manifests_are_a_fault(store: LocalStore, history: ArchiveHistory, tmp_path: Path) -> None:
    left = tmp_path / "data/run=00000004-0123456789ab/topic=orders/part.parquet"
    left.parent.mkdir(parents=True)
    left.touch()
    assert looked_at(store, history).faults == [
        "data/run=00000004-0123456789ab was written after manifest 3, but the newest in _archive is 2: "
        "restore the missing ones"
    ]


def test_foreign_files_are_reported(store: LocalStore, history: ArchiveHistory, tmp_path: Path) -> None:
    (tmp_path / "data/raw").mkdir()
    (tmp_path / "data/raw/customers.csv").touch()
    verdict = looked_at(store, history)
    assert verdict.faults == []
    assert verdict.remarks == ["data/raw/customers.csv does not belong to the archive; readers ignore it"]


@pytest.mark.parametrize(
    ("offsets", "faults"),
    [
        ((20, 30), []),
        ((0, 20), []),
        ((21, 30), ["orders-0: offsets 20 to 20 are in neither archive nor topic"]),
        ((0, 19), ["orders-0 ends at 19, but the archive has it up to 20"]),
    ],
)
def test_archive_and_topic_together_have_every_offset(
    history: ArchiveHistory, offsets: tuple[int, int], faults: list[str]
) -> None:
    verdict = Verdict()
    look_at_offsets(history, [Topic("orders", TOPIC_ID, {0: offsets, 1: (0, 4)})], verdict)
    assert verdict.faults == faults
    assert verdict.remarks == [
        "orders-1 is not archived yet; the topic has it from offset 0 on",
        "orders-0: offsets 10 to 11 were deleted from the topic before they were archived; the manifest lists them",
    ]


def test_records_deleted_from_an_added_partition_are_lost(history: ArchiveHistory) -> None:
    verdict = Verdict()
    look_at_offsets(history, [Topic("orders", TOPIC_ID, {0: (0, 20), 1: (3, 4)})], verdict)
    assert verdict.faults == ["orders-1: offsets 0 to 2 are in neither archive nor topic"]
