"""Copies of the data of stopped brokers, to which a test can return."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

SNAPSHOTS_MAX = 100
"""The maximum number of snapshots of a cluster, because each is a full copy."""
_FOLDER = "snapshots"


class Snapshot:
    """The data of all brokers of one cluster at one moment. `of`: the directory of the cluster."""

    def __init__(self, of: Path, number: int) -> None:
        self.of = of
        self.path = of / _FOLDER / str(number)

    def __repr__(self) -> str:
        return f"<Snapshot {self.path.name}>"


def take(directory: Path) -> Snapshot:
    """Copy the data of stopped brokers. Raises ValueError above SNAPSHOTS_MAX, OSError if there is no room."""
    folder = directory / _FOLDER
    folder.mkdir(exist_ok=True)
    number = len(list(folder.iterdir())) + 1
    if number > SNAPSHOTS_MAX:
        raise ValueError(f"a cluster has at most {SNAPSHOTS_MAX} snapshots; restore an earlier one")
    snapshot = Snapshot(directory, number)
    snapshot.path.mkdir()
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, snapshot.path)
        for data in _data_in(directory):
            shutil.copytree(data, snapshot.path / data.name)
        undo.pop_all()
    return snapshot


def put_back(snapshot: Snapshot) -> None:
    """Replace the data of stopped brokers with that of a snapshot, which can be restored again. Raises OSError."""
    for data in _data_in(snapshot.of):
        shutil.rmtree(data)
    for data in snapshot.path.iterdir():
        shutil.copytree(data, snapshot.of / data.name)


def _data_in(directory: Path) -> Iterator[Path]:
    return (each for each in sorted(directory.iterdir()) if each.is_dir() and each.name != _FOLDER)
