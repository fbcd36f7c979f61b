"""Tests the rules of the project that a linter cannot check (STYLE.md)."""

from __future__ import annotations

import ast
import re
import subprocess
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kpybroker"
FILES = sorted(PACKAGE.rglob("*.py"))
LINES_WARNED_OF = 400
FUNCTION_LINES_LIMIT = 60
DOORS = {"socket", "os", "time", "random", "threading", "subprocess", "concurrent", "multiprocessing", "ssl", "select"}
"""Modules that only a World may import: the simulator replaces the World."""
OUTSIDE = {"world", "cli", "testing", "sim", "spark", "archive", "__main__"}
NAMELESS = re.compile(r"(util|helper|manager|impl|misc|common)s?\b|(^|_)base(_|$)", re.IGNORECASE)
GUARDS = {"server/requests/dispatch.py", "machine/runner.py"}
"""The files in which `except Exception` is allowed: the guards around handlers, and around decisions with a caller."""
PYTHON_OF_THE_PROJECT = [
    file
    for folder in ("kpybroker", "tests", "compat_tests", "bench", "chaos", "oracle", "spark_examples")
    for file in sorted((ROOT / folder).rglob("*.py"))
]


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_only_the_world_touches_the_outside(file: Path) -> None:
    if room_of(file) in OUTSIDE:
        return
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name == "random.Random":
                continue  # only the type; the generator itself is provided by the World
            assert name.split(".")[0] not in DOORS, f"{name_of(file)}:{node.lineno} imports {name}; ask the World"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_functions_are_short(file: Path) -> None:
    """Functions have a limit. For a long file there is only a warning: a human decides whether it contains two
    things."""
    text = file.read_text()
    if (lines := text.count("\n")) > LINES_WARNED_OF:
        warnings.warn(f"{name_of(file)} has {lines} lines: is it two things?", stacklevel=1)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_LIMIT, f"{name_of(file)}:{node.lineno} {node.name} has {length} lines"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_names_are_specific(file: Path) -> None:
    assert not NAMELESS.search(file.stem), f"{name_of(file)}: a name that says nothing"
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef):
            assert not re.search(r"(Util|Helper|Manager|Impl|Misc|Common|Base)s?$", node.name), f"{node.name}"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_public_names_have_docstrings(file: Path) -> None:
    tree = ast.parse(file.read_text())
    if file.read_text().strip():
        assert ast.get_docstring(tree), f"{name_of(file)} does not say what it is"
    for node in tree.body:
        is_public = isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        in_declarations = room_of(file) == "wire" and file.parent.name in ("rpc", "stored")
        if is_public and not in_declarations:
            assert ast.get_docstring(node), f"{name_of(file)}:{node.lineno} {node.name} does not say what it is"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_errors_are_of_three_kinds(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ExceptHandler):
            caught = node.type
            names = {n.id for n in ast.walk(caught) if isinstance(n, ast.Name)} if caught is not None else {"all"}
            if names & {"Exception", "BaseException", "all"}:
                assert str(file.relative_to(PACKAGE)) in GUARDS, f"{name_of(file)}:{node.lineno} catches everything"


@pytest.mark.parametrize("file", PYTHON_OF_THE_PROJECT, ids=name_of)
def test_nothing_is_tied_to_one_machine(file: Path) -> None:
    text = file.read_text()
    assert not re.search(r"""["' ](/work|/root|/home)/""", text), f"{name_of(file)} names a path of one machine"


def test_no_broker_directory_is_tracked() -> None:
    """`kpybroker dev` keeps its data in the current directory; this data must not be committed."""
    command = ["git", "-c", "safe.directory=*", "ls-files"]  # the owner of the checkout may be another user
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:  # not a clone: there is no list of tracked files
        tracked = [name_of(path) for path in ROOT.glob("*/meta.properties")]
    else:
        tracked = [name for name in listed.stdout.split("\n") if name.endswith("meta.properties")]
    assert [name for name in tracked if not name.startswith("tests/")] == []
