"""A row of the house imports only rows below it; siblings meet in the broker (ARCHITECTURE.md, "The rows")."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "kpybroker"
ROWS = [
    ["cli", "testing", "sim", "spark", "archive", "__main__"],
    ["server"],
    ["handlers"],
    ["serving"],
    ["broker", "creating"],
    ["controller", "replication", "groups", "transactions", "quotas"],
    ["raft"],
    ["machine", "client", "tasks", "call", "long_work"],
    ["storage", "metadata"],
    ["security"],
    ["wire"],
    ["errors", "config", "metrics", "world"],
]
LEVEL = {name: len(ROWS) - row for row, names in enumerate(ROWS) for name in names}
FREE_OF_ONE_ANOTHER = {name for row in (ROWS[5], ROWS[8]) for name in row}
"""On these rows siblings do not import each other."""
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(source: str, here: tuple[str, ...]) -> list[tuple[int, str]]:
    """Line and room of every import of ours, those inside functions too; those for types alone do not count."""
    found = []
    tree = ast.parse(source)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(here[: -node.level]) + "." if node.level else ""
            module = (start + (node.module or "")).strip(".")
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "kpybroker" else [module]
        for name in names:
            parts = name.split(".")
            if parts[0] == "kpybroker" and len(parts) > 1:
                found.append((node.lineno, parts[1]))  # type: ignore[attr-defined]  # every import node has a line
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_imports_point_downwards(file: Path) -> None:
    room = room_of(file)
    if room == "__init__":
        return
    assert room in LEVEL, f"{room} is not a room of the house; give it a row in ARCHITECTURE.md and here"
    here = ("kpybroker", *file.relative_to(PACKAGE).with_suffix("").parts)
    for line, other in imported_rooms(file.read_text(), here):
        if other == room or other == "__version__":
            continue
        assert other in LEVEL, f"{file.name}:{line} imports the unknown room {other}"
        assert LEVEL[other] <= LEVEL[room], f"{file.name}:{line}: {room} imports {other}, which lies above it"
        assert not (other in FREE_OF_ONE_ANOTHER and LEVEL[other] == LEVEL[room]), (
            f"{file.name}:{line}: {room} imports its sibling {other}"
        )


def test_the_rule_bites() -> None:
    """The checker itself: an import upwards is seen, absolute or relative, and one for types alone is not."""
    here = ("kpybroker", "storage", "log")
    assert LEVEL["broker"] > LEVEL["storage"]
    assert imported_rooms("from kpybroker.broker import Broker", here) == [(1, "broker")]
    assert imported_rooms("from ..broker import Broker", here) == [(1, "broker")]
    assert imported_rooms("def f():\n    import kpybroker.server.server", here) == [(2, "server")]
    assert imported_rooms("if TYPE_CHECKING:\n    from kpybroker.broker import Broker", here) == []
