"""The compiled build: which modules it has, when it runs, and what happens if it cannot be made or is incomplete."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import SimpleNamespace

import pytest

from compiling.backend import MYPYC
from compiling.hook import CAUSE_CHARACTERS, cause, compiled_note
from compiling.toolchain import NOT_WANTED, why_not
from compiling.unpacking import unpacked

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kpybroker"
MODULES = (PACKAGE / "compiled_modules.txt").read_text().split()
SUFFIX = EXTENSION_SUFFIXES[0]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NOT_COMPILED = "interpreted: no C compiler was found"
MISFIT = "compiled for vax\n6 kpybroker__mypyc.cpython-27-vax.so\n"
COMPLETE = [f"kpybroker__mypyc{SUFFIX}", f"kpybroker/hot{SUFFIX}"]
BUILTINS = {"bytes", "bytearray", "frozenset", "int", "list", "set", "str", "tuple"}


def source(module: str) -> str:
    return (ROOT / f"{module.replace('.', '/')}.py").read_text()


def base_names(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]


def imported(tree: ast.Module) -> dict[str, str]:
    """The modules of the names that a file imports from modules of kpybroker."""
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("kpybroker.")
        for alias in node.names
    }


def refused_idioms(text: str) -> list[str]:
    """What mypyc cannot compile, or compiles into something slow, in a source."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            found += [f"{node.name} is a subclass of {name}" for name in base_names(node) if name in BUILTINS]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            is_bare = called.endswith(".__new__") and called != "tuple.__new__"  # named tuples are no native classes
            found += [ast.unparse(node)] if is_bare or called in ("exec", "setattr", "copy", "copy.copy") else []
        elif isinstance(node, ast.AsyncFunctionDef):
            inner = [each for each in ast.walk(node) if isinstance(each, ast.Yield)]
            found += [f"{node.name} is an asynchronous generator"] if inner else []
    return found


def late_types(text: str) -> list[str]:
    """Types of attributes that a class declares in its body, but whose import is for type checkers only. Compiled code
    looks them up when the class is created: it ends with KeyError, or, if the type is in a compiled module that is not
    loaded yet, with a segmentation fault."""
    tree = ast.parse(text)
    late: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            late |= {alias.name for each in node.body if isinstance(each, ast.ImportFrom) for alias in each.names}
    found = []
    for node in (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)):
        for declared in node.body:
            if isinstance(declared, ast.AnnAssign):
                names = {each.id for each in ast.walk(declared.annotation) if isinstance(each, ast.Name)}
                found += [f"{node.name}: {name}" for name in sorted(names & late)]
    return found


def interpreted_subclasses(sources: dict[str, str], compiled: set[str]) -> list[str]:
    """Classes of other modules whose base class is compiled; Python refuses to instantiate them. Exceptions, named
    tuples, enumerations and protocols are no native classes, so they may have subclasses anywhere."""
    native = set()
    for module in compiled & set(sources):
        for node in ast.walk(ast.parse(sources[module])):
            open_kinds = {"Exception", "NamedTuple", "Protocol", "IntEnum", "Enum", "StrEnum", "KafkaError", "Damage"}
            if isinstance(node, ast.ClassDef) and not open_kinds & set(base_names(node)):
                native.add((module, node.name))
    found = []
    for module in set(sources) - compiled:
        tree = ast.parse(sources[module])
        origin = imported(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found += [f"{module}.{node.name}({b})" for b in base_names(node) if (origin.get(b, ""), b) in native]
    return sorted(found)


def test_the_list_names_modules_in_order() -> None:
    assert sorted(set(MODULES)) == MODULES
    for module in MODULES:
        source(module)


@pytest.mark.parametrize("module", MODULES)
def test_a_compiled_module_has_only_what_can_be_compiled(module: str) -> None:
    assert refused_idioms(source(module)) == []
    assert late_types(source(module)) == []


def test_no_module_asks_for_the_explicit_cause_of_an_error() -> None:
    """`raise … from error` in compiled code sets only `__context__`."""
    assert [file.name for file in PACKAGE.rglob("*.py") if ".__cause__" in file.read_text()] == []


def test_no_interpreted_class_has_a_compiled_base_class() -> None:
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "compat_tests").rglob("*.py")]
    sources = {".".join(file.relative_to(ROOT).with_suffix("").parts): file.read_text() for file in files}
    assert interpreted_subclasses(sources, set(MODULES)) == []


def test_the_rules_detect_violations() -> None:
    for text in (
        "class A(bytes): ...",
        "class A(list[str]): ...",
        "A.__new__(A)",
        "copy(a)",
        "exec('a = 1')",
        "setattr(a, 'b', 1)",
        "async def f():\n    yield 1",
    ):
        assert len(refused_idioms(text)) == 1, text
    assert refused_idioms("async def f():\n    await g()\nclass A(B): ...\ntuple.__new__(A, (1,))") == []
    late = "if TYPE_CHECKING:\n    from a import A\n"
    assert late_types(late + "class B(NamedTuple):\n    a: list[A]\n    b: int") == ["B: A"]
    assert late_types(late + "class B:\n    b: int\n    def f(self, a: A) -> A: ...") == []
    sources = {"kpybroker.a": "class A: ...\nclass E(Exception): ...", "b": "from kpybroker.a import A, E\n"}
    for text, count in (("class B(A): ...", 1), ("class B(A[int]): ...", 1), ("class B(E): ...", 0), ("", 0)):
        given = {**sources, "b": sources["b"] + text}
        assert len(interpreted_subclasses(given, {"kpybroker.a"})) == count, text
    assert interpreted_subclasses({**sources, "b": sources["b"] + "class B(A): ..."}, {"kpybroker.a", "b"}) == []


# which build runs


def installed(directory: Path, note: str = "") -> Path:
    """A small package that decides like kpybroker; its module `hot` is in the list. The extensions are no libraries. An
    empty note stands for that of a compiled build."""
    package = directory / "kpybroker"
    package.mkdir(parents=True)
    for name in ("__init__.py", "compiled_build.py"):
        shutil.copy(PACKAGE / name, package)
    extensions = directory.with_name("built")
    for name in COMPLETE:
        (extensions / name).parent.mkdir(parents=True, exist_ok=True)
        (extensions / name).write_bytes(b"no library")
    (package / "build.txt").write_text(note or compiled_note(extensions))
    shutil.copytree(extensions, directory, dirs_exist_ok=True)
    (package / "hot.py").write_text("")
    return directory


def whole(directory: Path, note: str) -> Path:
    """A copy of the package with this note."""
    shutil.copytree(PACKAGE, directory / "kpybroker")
    (directory / "kpybroker/build.txt").write_text(note)
    return directory


def started(directory: Path, **variables: str) -> tuple[str, str]:
    """What runs, and stderr."""
    program = "import kpybroker, kpybroker.hot as hot; assert hot.__file__.endswith('.py'); print(kpybroker.BUILD)"
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip(), ran.stderr.strip()


@pytest.mark.parametrize("note", ["interpreted", NOT_COMPILED])
def test_a_build_that_was_not_compiled_is_silent_when_it_is_imported(tmp_path: Path, note: str) -> None:
    tree = installed(tmp_path / "tree", note + "\n")
    for name in COMPLETE:
        (tree / name).unlink()
    assert started(tree) == (note, "")


def test_without_a_note_the_sources_run(tmp_path: Path) -> None:
    tree = installed(tmp_path / "tree")
    for name in (*COMPLETE, "kpybroker/build.txt"):
        (tree / name).unlink()
    assert started(tree) == ("interpreted", "")


def test_the_sources_of_a_compiled_build_run_on_request(tmp_path: Path) -> None:
    tree = installed(tmp_path / "tree")
    assert started(tree, KPYBROKER_INTERPRETED="1") == ("interpreted: KPYBROKER_INTERPRETED=1", "")
    for unset in ("", "0"):
        assert "kpybroker__mypyc" in started(tree, KPYBROKER_INTERPRETED=unset)[0], "the library was to be loaded"


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ({"kpybroker/build.txt": b"compiled for vax\n6 kpybroker__mypyc.cpython-27-vax.so\n"}, "no extensions for"),
        ({"kpybroker/build.txt": b"compiled for vax\n"}, "no extensions for"),
        ({COMPLETE[0]: None}, f"1 of 2 extensions are not those of the build, for example {COMPLETE[0]}: No such file"),
        ({COMPLETE[1]: None}, f"1 of 2 extensions are not those of the build, for example {COMPLETE[1]}: No such file"),
        ({COMPLETE[1]: b"no"}, f"{COMPLETE[1]} has 2 bytes instead of 10"),
        ({COMPLETE[1]: b""}, f"{COMPLETE[1]} has 0 bytes instead of 10"),
        ({COMPLETE[0]: b"of another build"}, f"{COMPLETE[0]} has 16 bytes instead of 10"),
        ({}, "kpybroker__mypyc"),
    ],
    ids=["another Python", "no list", "no library", "half", "damaged", "empty", "another build", "another processor"],
)
def test_a_compiled_build_that_does_not_fit_runs_its_sources_and_says_so(
    tmp_path: Path, damage: dict[str, bytes | None], why: str
) -> None:
    tree = installed(tmp_path / "tree")
    for name, contents in damage.items():
        (tree / name).unlink() if contents is None else (tree / name).write_bytes(contents)
    runs, told = started(tree, KPYBROKER_INTERPRETED="0")
    assert runs.startswith("interpreted: ")
    assert why in runs
    assert told == f"kpybroker runs {runs}"
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("brokers", ["1", "2"])
@pytest.mark.parametrize("note", [NOT_COMPILED, MISFIT], ids=["not compiled", "another Python"])
def test_a_broker_says_once_why_it_is_not_compiled(tmp_path: Path, note: str, brokers: str) -> None:
    tree = whole(tmp_path / "tree", note)
    command = [sys.executable, "-m", "kpybroker", "dev", "--port", "0", "--ephemeral", "--until-stdin-closes"]
    environment = {**os.environ, "KPYBROKER_INTERPRETED": "", "PYTHONPATH": str(tree)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, "--brokers", brokers], cwd=tree, text=True, env=environment, **pipes) as broker:
        assert broker.stdout is not None
        ready = broker.stdout.readline()
        _, told = broker.communicate(timeout=60)
    assert ready.startswith("kpybroker ready"), told
    lines = [line for line in told.splitlines() if "interpreted" in line]
    if note == MISFIT:
        assert [line.partition(": ")[0] for line in lines] == ["kpybroker runs interpreted"], told
    else:
        assert [line.partition("kpybroker: ")[2] for line in lines] == [
            "the interpreted build runs: no C compiler was found"
        ], told


def test_the_benchmarks_name_the_build_that_runs(tmp_path: Path) -> None:
    tree = whole(tmp_path / "tree", MISFIT)
    program = "from bench import report; print(report.surroundings()['build'])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KPYBROKER_INTERPRETED": ""}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert ran.stdout == "interpreted\n"


def test_a_wheel_that_runs_its_sources_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the benchmark of the compiled build, and by its tests."""
    monkeypatch.setenv("KPYBROKER_INTERPRETED", "")
    tree = whole(tmp_path / "tree", MISFIT)
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    shutil.make_archive(str(tmp_path / "wheel"), "zip", tree)
    (tmp_path / "wheel.zip").rename(tmp_path / f"kpybroker-0-{tag}-{tag}-{platform}.whl")
    with pytest.raises(SystemExit, match=r"the wheel runs as .*interpreted: it has no extensions"):
        unpacked(tmp_path, tmp_path / "unpacked")


def test_the_wheels_of_a_release_are_refused_unless_they_run_compiled(tmp_path: Path) -> None:
    command = PROJECT["tool"]["cibuildwheel"]["test-command"].replace("python ", f"{sys.executable} ")
    environment = {**os.environ, "PYTHONPATH": "", "KPYBROKER_INTERPRETED": ""}
    tree = whole(tmp_path / "tree", MISFIT)

    def passes() -> bool:
        return subprocess.run(command, shell=True, cwd=tree, capture_output=True, env=environment).returncode == 0

    assert not passes()
    (tree / "kpybroker/__init__.py").write_text("BUILD = 'compiled'\n__version__ = '0'\n")
    assert passes()


def test_all_lists_of_pythons_agree() -> None:
    wheels = re.findall(r"cp3(\d+)-", PROJECT["tool"]["cibuildwheel"]["build"])
    named = re.findall(r"Python :: 3\.(\d+)", " ".join(PROJECT["project"]["classifiers"]))
    workflow = (ROOT / ".github/workflows/tests.yml").read_text()
    tested = re.findall(r"3\.(\d+)", re.findall(r"python: \[(.*)\]", workflow)[0])
    assert wheels == named == tested
    assert f"CPython 3.{wheels[0]} to 3.{wheels[-1]}" in (ROOT / "README.md").read_text()
    assert f"CPython 3.{wheels[0]} to 3.{wheels[-1]}" in (ROOT / "docs/installing.md").read_text()


def test_the_developers_have_the_compiler_of_the_wheels() -> None:
    assert MYPYC in PROJECT["project"]["optional-dependencies"]["dev"]


# which build is made


def test_what_hinders_a_compiled_build_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KPYBROKER_COMPILE", "0")
    assert why_not() == NOT_WANTED
    monkeypatch.delenv("KPYBROKER_COMPILE")
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    if sys.platform != "win32":
        assert "no C compiler" in why_not()
    monkeypatch.setenv("KPYBROKER_COMPILE", "1")
    assert why_not() == "", "it is tried, and fails with the message of the compiler"


@pytest.mark.skipif(sys.platform == "win32", reason="the vswhere.exe of the test is a shell script")
def test_on_windows_a_compiler_is_what_visual_studio_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = SimpleNamespace(platform="win32", implementation=sys.implementation)
    monkeypatch.setattr("compiling.toolchain.sys", windows)  # only there: shutil.which looks at the platform, too
    monkeypatch.delenv("KPYBROKER_COMPILE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("PROGRAMFILES(X86)", "PROGRAMFILES", "DISTUTILS_USE_SDK"):
        monkeypatch.delenv(name, raising=False)
    assert "no C compiler" in why_not(), "no folder of programs"
    monkeypatch.setenv("PROGRAMFILES(X86)", str(tmp_path))
    assert "no C compiler" in why_not(), "no Visual Studio"
    vswhere = tmp_path / "Microsoft Visual Studio/Installer/vswhere.exe"
    vswhere.parent.mkdir(parents=True)
    for script, has_compiler in (
        ("exit 0", False),
        ("echo; exit 0", False),
        ("echo C:/VS; exit 1", False),
        ("echo C:/VS", True),
    ):
        vswhere.write_text(f"#!/bin/sh\n{script}\n")
        vswhere.chmod(0o755)
        assert (why_not() == "") == has_compiler, script
    monkeypatch.setenv("DISTUTILS_USE_SDK", "1")
    assert "no C compiler" in why_not(), "the compiler is not on PATH"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/cl").touch(0o755)
    assert why_not() == "", "the compiler is on PATH"


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("a.c: In function 'f':\na.c:1:2: error: no\nCompileError: failed", "a.c:1:2: error: no"),
        ("a.c:1:10: fatal error: Python.h: none\n1 error generated", "a.c:1:10: fatal error: Python.h: none"),
        ("a.c(1): fatal error C1083: no\nerror: cl failed", "a.c(1): fatal error C1083: no"),
        ("kpybroker/a.py:1: error: no  [misc]\n", "kpybroker/a.py:1: error: no  [misc]"),
        ("Traceback:\n    raise ExecError(\nExecError: command failed\n\n", "ExecError: command failed"),
        ("gcc: internal compiler error: Killed\nError: x", "gcc: internal compiler error: Killed"),
        ("CompileError: " + "x" * 286, "CompileError: " + "x" * 286),
        (f"CompileError: {'x' * 9999} ended", f"CompileError: {'x' * 86} ... {'x' * 189} ended"),
        ("\n", ""),
    ],
)
def test_the_cause_of_a_failure_is_the_line_that_tells_most(output: str, line: str) -> None:
    assert cause(output) == line
    assert len(line) <= CAUSE_CHARACTERS


def required(hook: str, **variables: str) -> str:
    """The requirements that the backend names to pip."""
    program = f"from compiling import backend; print(*backend.{hook}())"
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True, env=environment)
    return ran.stdout


def test_only_a_compiled_build_requires_mypyc() -> None:
    assert "mypy" in required("get_requires_for_build_wheel", KPYBROKER_COMPILE="1")
    assert "mypy" not in required("get_requires_for_build_wheel", KPYBROKER_COMPILE="0")
    assert "mypy" not in required("get_requires_for_build_editable", KPYBROKER_COMPILE="1")


SOURCES = ("kpybroker", "compiling", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE")


def built(directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel in `directory / "dist"`, from a copy of the sources: mypy does not report errors in modules that
    this Python could import, as those of ROOT. Temporary files are in `tmp`."""
    for name in ("dist", "tmp", "sources"):
        (directory / name).mkdir()
    copy = directory / "sources"
    for name in SOURCES:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, copy / name)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory / "dist")]
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP"), str(directory / "tmp")), **variables}
    environment.pop("PYTHONPATH", None)
    return subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=280, check=False, env=environment)


@pytest.mark.slow
def test_a_compiler_that_fails_leaves_the_interpreted_build(tmp_path: Path) -> None:
    ran = built(tmp_path, KPYBROKER_COMPILE="", CC="false")
    assert ran.returncode == 0, ran.stderr
    assert [file.name.endswith("-py3-none-any.whl") for file in (tmp_path / "dist").iterdir()] == [True]
    (line,) = [line for line in ran.stderr.splitlines() if "kpybroker is not compiled: " in line]
    assert re.search(r"Error: command '.*false' failed with exit code 1$", line)
    assert not re.search(r"\.py:\d+: error", ran.stdout + ran.stderr), "only the C compiler fails, not mypy"
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.slow
def test_a_compiler_that_fails_is_an_error_on_request(tmp_path: Path) -> None:
    ran = built(tmp_path, KPYBROKER_COMPILE="1", CC="false")
    assert ran.returncode != 0
    assert "kpybroker could not be compiled: " in ran.stderr
    assert not list((tmp_path / "dist").iterdir())
    assert not list((tmp_path / "tmp").iterdir()), "temporary files remain"
