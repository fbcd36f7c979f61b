"""A World whose disk ignores the case of names, which is the default on macOS."""

from __future__ import annotations

import os
from typing import Any

from kpybroker.world.real import RealDisk, RealWorld

TAKE_A_PATH = (
    "exists",
    "is_directory",
    "list",
    "lock",
    "mkdir",
    "modified_ms",
    "open",
    "path_size",
    "rename",
    "rmdir",
    "sync_directory",
    "sync_directory_blocking",
    "unlink",
)


def found(path: str) -> str:
    """The path in which each existing name has the case with which it was created."""
    folder, name = os.path.split(path)
    if not name or os.path.lexists(path):
        return path
    folder = found(folder)
    there = os.listdir(folder) if os.path.isdir(folder) else []
    return os.path.join(folder, next((each for each in there if each.lower() == name.lower()), name))


class FoldingDisk(RealDisk):
    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name not in TAKE_A_PATH:
            return method
        return lambda *given, **options: method(
            *(found(each) if isinstance(each, str) else each for each in given), **options
        )


class FoldingWorld(RealWorld):
    def __init__(self, seed: int | None = None) -> None:
        super().__init__(seed)
        self.disk = FoldingDisk()
