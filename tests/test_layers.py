"""Tests which modules a module may import, and which attributes a file may assign (ARCHITECTURE.md, "Layers").

Every import counts: at the top of a file, inside a function, and for types only.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest
from mypy import api

PACKAGE = Path(__file__).parent.parent / "kpybroker"
ROWS = [
    ["__main__"],
    ["testing"],
    ["cli", "sim"],
    ["archive"],
    ["spark"],
    ["server"],
    ["handlers"],
    ["serving"],
    ["broker"],
    ["scheduled"],
    ["controller", "replication", "groups", "transactions", "shares", "quotas"],
    ["raft"],
    ["machine", "client", "tasks", "call", "long_work"],
    ["storage", "metadata"],
    ["security"],
    ["wire"],
    ["config"],
    ["compiled_build", "errors", "metrics", "similar_names", "stalls", "topics", "world"],
]
"""From top to bottom. A row imports rows below it; packages in the same row do not import each other."""
LADDERS = {
    "storage": ["files", "producers", "log", "compaction", "dirs", "repair"],
    "raft": ["core", "log", "driver", "duties", "quorum"],
    "groups": ["ground", "offsets", "classic", "consumer", "share", "streams", "kinds", "machine", "coordinator"],
    "replication": ["partition", "follower", "node"],
    "server": ["connections", "requests", "server", "metrics", "node"],
    "security": ["sasl", "tls"],
    "serving": ["produce", "fetch", "shares"],
    "sim": ["world", "laws", "cluster", "clients", "faults", "checks", "actors", "simulation", "mutants"],
    "wire": ["codec", "records"],
}
"""The parts of a package from bottom to top: a part imports only parts before it. Unnamed parts may be anywhere, as
long as there is no import cycle between files."""
UNORDERED = {"rpc", "stored"}
"""Folders of declarations, which import only what they need to declare them."""
LEVEL = {name: len(ROWS) - row for row, names in enumerate(ROWS) for name in names}
HIDDEN = {"kpybroker.sim.mutants.mutant": ["setattr(target, name, value)"]}
"""Assignments in a hidden form, by module: a mutant is an intentional bug."""
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(file: Path) -> str:
    parts = ["kpybroker", *file.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in FILES}
SOURCES = {module: file.read_text() for module, file in MODULES.items()}


def imports_of(source: str, module: str, *, known: set[str]) -> list[tuple[int, str]]:
    """The line and the module of every import of kpybroker modules, anywhere in the file."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                found.append((node.lineno, inner if inner in known else origin))
    return [(line, name) for line, name in found if name.startswith("kpybroker.")]


def part_of(module: str, depth: int) -> str:
    parts = module.split(".")
    return parts[depth] if len(parts) > depth else ""


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The modules that import each other, by Tarjan's algorithm; each cycle is sorted."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        path.append(module)
        for other in sorted(edges.get(module, ())):
            if other not in order:
                visit(other)
            if other in path:
                low[module] = min(low[module], low[other])
        if low[module] == order[module]:
            circle = path[path.index(module) :]
            del path[path.index(module) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for module in sorted(edges):
        if module not in order:
            visit(module)
    return found


def faults_of(module: str, source: str) -> list[str]:
    """Imports of a module from a higher row, from the same row, or from a higher layer of its package."""
    room, part = part_of(module, 1), part_of(module, 2)
    assert not room or room in LEVEL, f"{room} is not a known package: give it a row in ARCHITECTURE.md and here"
    found = []
    for line, other in imports_of(source, module, known=set(MODULES)):
        there = part_of(other, 1)
        if not room or there == "__version__":
            continue
        if there != room:
            assert there in LEVEL, f"{module}:{line} imports the unknown package {there}"
            if LEVEL[there] >= LEVEL[room]:
                found.append(f"{module}:{line}: {room} imports {there}, which is not below it")
        elif part != part_of(other, 2):
            ladder = LADDERS.get(room, [])
            step, its = part_of(other, 2), part
            if step in ladder and its in ladder and ladder.index(step) > ladder.index(its):
                found.append(f"{module}:{line}: {room}.{its} imports {room}.{step}, which stands above it")
    return found


def test_imports_point_downwards() -> None:
    assert [fault for module in sorted(MODULES) for fault in faults_of(module, SOURCES[module])] == []


def test_no_import_circle() -> None:
    edges = {
        module: {name for _, name in imports_of(source, module, known=set(MODULES)) if name != module}
        for module, source in SOURCES.items()
    }
    assert circles(edges) == []


def test_ladders_name_existing_parts() -> None:
    for room, ladder in LADDERS.items():
        for part in ladder:
            assert f"kpybroker.{room}.{part}" in MODULES, f"{room}/{part} is on a ladder here, but does not exist"
        folders = {file.parent.name for file in (PACKAGE / room).glob("*/__init__.py")}
        assert folders <= {*ladder, *UNORDERED}, f"folders of {room} without a place on its ladder"


def attributes_of(node: ast.ClassDef) -> set[str]:
    """The attributes that a class declares in its body, in `__slots__`, and by assignments to itself."""
    names: set[str] = set()
    for inner in node.body:
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            names.add(inner.target.id)
        elif isinstance(inner, ast.Assign):
            targets = {target.id for target in inner.targets if isinstance(target, ast.Name)}
            names |= targets - {"__slots__"}
            if "__slots__" in targets:
                names |= {c.value for c in ast.walk(inner.value) if isinstance(c, ast.Constant)}  # type: ignore[misc]
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and is_self(inner.value):
            names.add(inner.attr)
    return names


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def assigned_by(node: ast.ClassDef) -> set[str]:
    """The attributes that a class assigns on itself."""
    return {
        inner.attr
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store | ast.Del) and is_self(inner.value)
    }


def shared_attributes(sources: dict[str, str]) -> list[str]:
    """Attributes that both a class and its base class in another file assign on `self`."""
    classes: dict[str, list[tuple[str, ast.ClassDef]]] = defaultdict(list)
    for module, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append((module, node))

    def ancestors(node: ast.ClassDef) -> list[tuple[str, ast.ClassDef]]:
        names = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
        direct = [each for name in names for each in classes[name] if each[1] is not node]
        return direct + [each for _, base in direct for each in ancestors(base)]

    return sorted(
        f"{module}.{node.name} and {other}.{base.name} assign {name}"
        for module, node in [each for found in list(classes.values()) for each in found]
        for other, base in ancestors(node)
        if other != module
        for name in assigned_by(node) & assigned_by(base)
    )


def hidden_assignments(source: str) -> list[str]:
    """Assignments that mypy does not recognise: `del` of another object's attribute, and ways around the syntax."""
    found = []
    for node in ast.walk(ast.parse(source)):
        is_deleted = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Del) and not is_self(node.value)
        is_call = isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr", "object.__setattr__")
        is_own = isinstance(node, ast.Call) and bool(node.args) and is_self(node.args[0])
        is_dict = isinstance(node, ast.Attribute) and node.attr == "__dict__" and not is_self(node.value)
        if is_deleted or is_dict or (is_call and not is_own):
            found.append(ast.unparse(node))
    return found


def run_mypy(*arguments: str) -> str:
    out, complaint, _ = api.run(list(arguments))
    assert not complaint, complaint
    return out


@pytest.mark.slow
def test_attributes_are_assigned_in_the_file_of_their_class() -> None:
    """mypy checks this with types (tests/assignment_rule.py); this test checks assignments on `self` if a base class is
    in another file."""
    assert "foreign-assignment" not in run_mypy("--config-file", str(PACKAGE.parent / "pyproject.toml"))
    assert shared_attributes(SOURCES) == []


def test_no_assignment_is_hidden() -> None:
    hidden = {module: hidden_assignments(source) for module, source in SOURCES.items()}
    assert {module: found for module, found in hidden.items() if found} == HIDDEN


def test_the_broker_has_few_attributes() -> None:
    """A handler accesses all parts of the broker through twelve attributes."""
    source = ast.parse(SOURCES["kpybroker.broker.broker"])
    [broker] = [node for node in source.body if isinstance(node, ast.ClassDef) and node.name == "Broker"]
    assert len(attributes_of(broker)) <= 12, sorted(attributes_of(broker))


def test_the_rules_of_imports_detect_violations() -> None:
    """Every way to import is recognised, and cycles are found."""
    here = "kpybroker.storage.log.log"
    for source in (
        "from kpybroker.broker.broker import Broker",
        "from kpybroker import broker",
        "from ...broker import Broker",
        "def f():\n    import kpybroker.broker",
        "if TYPE_CHECKING:\n    from kpybroker.broker.broker import Broker",
        "from kpybroker.metadata.image import Image",
        "from kpybroker.storage.dirs.cleaner import Cleaner",
    ):
        assert len(faults_of(here, source)) == 1, source
    assert (
        faults_of(here, "from kpybroker.storage.files.segment import Segment\nfrom kpybroker.errors import Damage")
        == []
    )
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}}) == []


OWNER = """
from typing import NamedTuple
class Log:
    end = 0
    def __init__(self) -> None:
        self.start = 0
    def move(self, other: "Log") -> None:
        other.start = 1
class Batch(Log):
    def __init__(self) -> None:
        self.size = 0
"""
FOREIGN = """
import contextlib
from kpybroker.log import Batch, Log
from kpybroker.wire.rpc.answer import Answer
class Part(Log):
    def __init__(self, log: Log) -> None:
        self.log = log
        self.own = 1
def change(log: Log, part: Part, batch: Batch | None, answer: Answer) -> None:
    log.start = 1  # reported
    log.start += 1  # reported
    part.log.end = 1  # reported
    log.end, own = 1, 2  # reported
    for log.start in (1, 2):  # reported
        pass
    with contextlib.nullcontext(3) as log.end:  # reported
        pass
    part.start = 1  # reported
    part.own = 2
    answer.error_code = 3
    if batch is not None:
        batch.size = 1  # reported
"""


def test_the_rule_of_assignments_detects_violations(tmp_path: Path) -> None:
    """Every kind of assignment in another file is reported, but no assignment in the class's own file or to a
    message."""
    (tmp_path / "kpybroker/wire/rpc").mkdir(parents=True)
    for name in ("", "wire/", "wire/rpc/"):
        (tmp_path / f"kpybroker/{name}__init__.py").touch()
    (tmp_path / "kpybroker/log.py").write_text(OWNER)
    (tmp_path / "kpybroker/wire/rpc/answer.py").write_text("class Answer:\n    error_code = 0\n")
    (tmp_path / "kpybroker/other.py").write_text(FOREIGN)
    rule = PACKAGE.parent / "tests/assignment_rule.py"
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nplugins = {rule}\ncache_dir = {tmp_path / 'cache'}\n")
    found = run_mypy("--config-file", str(tmp_path / "mypy.ini"), str(tmp_path / "kpybroker"))
    reported = [int(line.split(":")[1]) for line in found.splitlines() if "foreign-assignment" in line]
    assert reported == [at for at, line in enumerate(FOREIGN.splitlines(), 1) if "# reported" in line], found


def test_the_rule_about_self_detects_violations() -> None:
    base = "class Log:\n    def __init__(self):\n        self.end = 0\n"
    sub = "class Part({}):\n    def move(self):\n        self.end = 1\n"
    for sources in (
        {"a": base, "b": sub.format("Log")},
        {"a": base, "b": sub.format("log.Log[int]")},
        {"a": base, "b": "class Mid(Log):\n    pass\n", "c": sub.format("Mid")},
    ):
        assert len(shared_attributes(sources)) == 1, sources
    for sources in ({"a": base + sub.format("Log")}, {"a": base, "b": sub.format("Other")}):
        assert shared_attributes(sources) == [], sources
    for source in ("del log.end", "setattr(log, 'end', 1)", "object.__setattr__(log, 'end', 1)", "log.__dict__['a']"):
        assert len(hidden_assignments(source)) == 1, source
    assert hidden_assignments("del self.end\nobject.__setattr__(self, 'end', 1)\nself.__dict__") == []
