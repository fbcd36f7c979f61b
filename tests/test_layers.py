"""Who may import whom, and who may assign what (ARCHITECTURE.md, "The rows").

Every import counts: at the head of a file, inside a function, and those for types alone.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "kpybroker"
ROWS = [
    ["__main__"],
    ["cli", "testing", "sim"],
    ["archive"],
    ["spark"],
    ["server"],
    ["handlers"],
    ["serving"],
    ["broker"],
    ["controller", "replication", "groups", "transactions", "quotas"],
    ["raft"],
    ["machine", "client", "tasks", "call", "long_work"],
    ["storage", "metadata"],
    ["security"],
    ["wire"],
    ["config"],
    ["errors", "metrics", "topics", "world"],
]
"""From top to bottom. A row imports rows below it; rooms of one row do not import each other."""
LADDERS = {
    "storage": ["files", "producers", "log", "compaction", "dirs", "repair"],
    "raft": ["core", "log", "driver", "duties", "quorum"],
    "groups": ["ground", "offsets", "classic", "consumer", "unserved", "kinds", "machine", "coordinator"],
    "replication": ["partition", "follower", "node"],
    "server": ["connections", "requests", "server", "metrics", "node"],
    "security": ["sasl"],
    "serving": ["produce", "fetch"],
    "sim": ["world", "laws", "cluster", "clients", "faults", "checks", "actors", "simulation", "mutants"],
    "wire": ["codec", "records"],
}
"""The parts of a package from bottom to top: a part imports only parts before it. Parts not named may stand anywhere,
as long as there is no circle of files."""
UNORDERED = {"rpc", "stored"}
"""Folders of declarations, which import only what declares them."""
LEVEL = {name: len(ROWS) - row for row, names in enumerate(ROWS) for name in names}
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(file: Path) -> str:
    parts = ["kpybroker", *file.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in FILES}
SOURCES = {module: file.read_text() for module, file in MODULES.items()}


def imports_of(source: str, module: str, *, known: set[str]) -> list[tuple[int, str]]:
    """Line and module of every import of ours, wherever it stands in the file."""
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
    """The modules that reach each other, by Tarjan's algorithm; each circle sorted."""
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
    """Imports of a module that point up a row, sideways in a row, or up the ladder of its package."""
    room, part = part_of(module, 1), part_of(module, 2)
    assert not room or room in LEVEL, f"{room} is no room of the house: give it a row in ARCHITECTURE.md and here"
    found = []
    for line, other in imports_of(source, module, known=set(MODULES)):
        there = part_of(other, 1)
        if not room or there == "__version__":
            continue
        if there != room:
            assert there in LEVEL, f"{module}:{line} imports the unknown room {there}"
            if LEVEL[there] >= LEVEL[room]:
                found.append(f"{module}:{line}: {room} imports {there}, which is not below it")
        elif part != part_of(other, 2):
            ladder = LADDERS.get(room, [])
            step, its = part_of(other, 2), part
            if step in ladder and its in ladder and ladder.index(step) > ladder.index(its):
                found.append(f"{module}:{line}: {room}.{its} imports {room}.{step}, which stands above it")
    return found


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_downwards(module: str) -> None:
    assert faults_of(module, SOURCES[module]) == []


def test_no_import_circle() -> None:
    edges = {
        module: {name for _, name in imports_of(source, module, known=set(MODULES)) if name != module}
        for module, source in SOURCES.items()
    }
    assert circles(edges) == []


def test_ladders_name_what_is_there() -> None:
    for room, ladder in LADDERS.items():
        for part in ladder:
            assert f"kpybroker.{room}.{part}" in MODULES, f"{room}/{part} is on a ladder here, and nowhere else"
        folders = {file.parent.name for file in (PACKAGE / room).glob("*/__init__.py")}
        assert folders <= {*ladder, *UNORDERED}, f"folders of {room} without a place on its ladder"


def attributes_of(node: ast.ClassDef) -> set[str]:
    """What a class declares in its body, in `__slots__`, and sets on itself."""
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


def owners_of_attributes(sources: dict[str, str]) -> dict[str, set[str]]:
    """The modules whose classes have an attribute of that name. Messages, which handlers fill in, are not counted."""
    owners: dict[str, set[str]] = defaultdict(set)
    messages: set[str] = set()
    for module, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                if module.startswith(("kpybroker.wire.rpc.", "kpybroker.wire.stored.")):
                    messages |= attributes_of(node)
                else:
                    for name in attributes_of(node):
                        owners[name].add(module)
    return {name: modules for name, modules in owners.items() if name not in messages}


def foreign_assignments(module: str, source: str, owners: dict[str, set[str]]) -> list[str]:
    """Assignments to attributes of classes in rooms that the module imports, but for those of its own classes."""
    rooms = {part_of(module, 1), *(part_of(other, 1) for _, other in imports_of(source, module, known=set(MODULES)))}
    return [
        f"{module}:{node.lineno} assigns {ast.unparse(node)}, an attribute of {', '.join(sorted(owners[node.attr]))}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store | ast.Del)
        and not is_self(node.value)
        and node.attr in owners
        and module not in owners[node.attr]
        and any(part_of(owner, 1) in rooms for owner in owners[node.attr])
    ]


OWNERS = owners_of_attributes(SOURCES)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_attributes_are_assigned_in_the_file_of_their_class(module: str) -> None:
    assert foreign_assignments(module, SOURCES[module], OWNERS) == []


def test_the_broker_has_few_parts() -> None:
    """What a handler can reach is found by twelve names."""
    source = ast.parse(SOURCES["kpybroker.broker.broker"])
    [broker] = [node for node in source.body if isinstance(node, ast.ClassDef) and node.name == "Broker"]
    assert len(attributes_of(broker)) <= 12, sorted(attributes_of(broker))


def test_the_rules_bite() -> None:
    """The checks themselves: every way to import is seen, circles are found, and so is an assignment from outside."""
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
    owner = "class Log:\n    __slots__ = ('end',)\n    limit: int\n    def __init__(self):\n        self.start = 0"
    owners = owners_of_attributes(
        {"kpybroker.storage.x": owner, "kpybroker.wire.rpc.y": "class Answer:\n    error_code: int"}
    )
    for source in ("log.end = 1", "log.start += 1", "self.log.limit = 2", "del log.end"):
        assert len(foreign_assignments("kpybroker.storage.z", source, owners)) == 1, source
        assert foreign_assignments("kpybroker.storage.x", source, owners) == []
    assert foreign_assignments("kpybroker.storage.z", "answer.error_code = 1\nself.end = 3", owners) == []
