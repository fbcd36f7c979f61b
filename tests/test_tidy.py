"""Tests the rules of the project that a linter cannot check (STYLE.md)."""

from __future__ import annotations

import ast
import re
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kpybroker"
FILES = sorted(PACKAGE.rglob("*.py"))
LINES_WARNED_OF = 400
FUNCTION_LINES_LIMIT = 60
DOORS = {"socket", "os", "time", "random", "threading", "subprocess", "concurrent", "multiprocessing", "ssl", "select"}
"""Modules that only a World may import: the simulator replaces the World."""
OUTSIDE = {"compiled_build", "world", "cli", "testing", "sim", "spark", "archive", "__main__"}
NAMELESS_FILE = re.compile(r"(util|helper|manager|impl|misc|common)s?\b|(^|_)base(_|$)", re.IGNORECASE)
NAMELESS_CLASS = re.compile(r"(Util|Helper|Manager|Impl|Misc|Common|Base)s?$")
GUARDS = {"server/requests/dispatch.py", "machine/runner.py"}
"""The files in which `except Exception` is allowed: the guards around handlers, and around decisions with a caller."""
PYTHON_OF_THE_PROJECT = [
    file
    for folder in ("kpybroker", "tests", "compat_tests", "bench", "chaos", "oracle", "spark_examples")
    for file in sorted((ROOT / folder).rglob("*.py"))
]


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


TREES = {file: ast.parse(file.read_text(), name_of(file)) for file in FILES}


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            yield file, node


def test_only_the_world_touches_the_outside() -> None:
    found = []
    for file, node in nodes():
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            # random.Random is only used as a type; the generator itself is provided by the World
            if name.split(".")[0] in DOORS and name != "random.Random" and room_of(file) not in OUTSIDE:
                found.append(f"{name_of(file)} imports {name}; ask the World")
    assert found == []


def test_functions_are_short() -> None:
    found = []
    for file, node in nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_LIMIT:
                found.append(f"{name_of(file)}:{node.lineno} {node.name} has {lines} lines")
    assert found == []


def test_long_files_are_shown() -> None:
    """A long file causes only a warning: a human decides whether it contains two things."""
    for file in FILES:
        if (lines := file.read_text().count("\n")) > LINES_WARNED_OF:
            warnings.warn(f"{name_of(file)} has {lines} lines: is it two things?", stacklevel=1)


def test_names_are_specific() -> None:
    found = [name_of(file) for file in FILES if NAMELESS_FILE.search(file.stem)]
    for file, node in nodes():
        if isinstance(node, ast.ClassDef) and NAMELESS_CLASS.search(node.name):
            found.append(f"{name_of(file)}:{node.lineno} {node.name}")
    assert found == []


def test_public_names_have_docstrings() -> None:
    found = []
    for file, tree in TREES.items():
        if tree.body and not ast.get_docstring(tree):
            found.append(name_of(file))
        if room_of(file) == "wire" and file.parent.name in ("rpc", "stored"):
            continue  # these classes declare the fields of a message
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node):
                found.append(f"{name_of(file)}:{node.lineno} {node.name}")
    assert found == []


def test_errors_are_of_three_kinds() -> None:
    found = []
    for file, node in nodes():
        if isinstance(node, ast.ExceptHandler) and str(file.relative_to(PACKAGE)) not in GUARDS:
            caught = node.type
            names = {n.id for n in ast.walk(caught) if isinstance(n, ast.Name)} if caught is not None else {"all"}
            if names & {"Exception", "BaseException", "all"}:
                found.append(f"{name_of(file)}:{node.lineno} catches everything")
    assert found == []


def test_nothing_is_tied_to_one_machine() -> None:
    """No file contains the path of one machine."""
    path = re.compile(r"""["' ](/work|/root|/home)/""")
    assert [name_of(file) for file in PYTHON_OF_THE_PROJECT if path.search(file.read_text())] == []


def test_no_broker_directory_is_tracked() -> None:
    """`kpybroker dev` keeps its data in the current directory; this data must not be committed."""
    command = ["git", "-c", "safe.directory=*", "ls-files"]  # the owner of the checkout may be another user
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:  # not a clone: there is no list of tracked files
        tracked = [name_of(path) for path in ROOT.glob("*/meta.properties")]
    else:
        tracked = [name for name in listed.stdout.split("\n") if name.endswith("meta.properties")]
    assert [name for name in tracked if not name.startswith("tests/")] == []
