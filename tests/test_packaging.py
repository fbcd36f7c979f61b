"""Tests that the package installs exactly the dependencies of a broker, and that its page on PyPI is readable."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kpybroker"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUNTIME = {"crc32c", "cramjam", "h11", "prometheus-client", "rich", "typer", "xxhash", "zstandard"}
WITH_EXTRAS = {
    "archive": {"confluent-kafka", "py4j", "pyarrow", "pyspark"},
    "sim": {"coverage"},
    "spark": {"py4j", "pyspark"},
    "testing": {"pytest"},
}
"""Parts of the package that need an extra to be imported at all."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    directory = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    pure = {**os.environ, "KPYBROKER_COMPILE": "0"}
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, env=pure)
    assert built.returncode == 0, built.stderr
    return zipfile.ZipFile(next(directory.glob("*-py3-none-any.whl")))


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_string(wheel.read(name).decode())


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()


def test_a_broker_needs_eight_packages(metadata: Message) -> None:
    needed = {name_of(each) for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each}
    assert needed == RUNTIME


def test_no_way_to_install_it_brings_pydantic(metadata: Message) -> None:
    """typer needs pydantic since version 0.29; the upper bound of typer must apply to `make run` and to the image."""
    (typer,) = (each for each in metadata.get_all("Requires-Dist", []) if name_of(each) == "typer")
    assert "<0.29" in typer


def test_extras_contain_rarely_needed_packages() -> None:
    extras = PROJECT["optional-dependencies"]
    assert [name_of(each) for each in extras["regex"]] == ["google-re2"]
    everything = {name_of(each) for each in extras["dev"] + extras["compat"]}
    assert not everything & RUNTIME


def test_the_metadata_describes_the_package_and_its_platforms(metadata: Message) -> None:
    assert metadata["Summary"] == PROJECT["description"]
    assert {"kafka", "pytest", "testing"} <= set(metadata["Keywords"].split(","))
    classifiers = metadata.get_all("Classifier", [])
    assert "Framework :: Pytest" in classifiers
    systems = [each for each in classifiers if each.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"], "the tests run there alone"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_page_of_a_registry_has_no_dead_links(metadata: Message) -> None:
    """The page on PyPI does not contain the files of the repository, so links to files are removed. Code is
    unchanged."""
    page = str(metadata.get_payload())
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    links = re.findall(r"\[[^\]\[]+\]\(([^)\s]+)\)", page)
    assert [link for link in links if not re.match(r"https?://|mailto:|#", link)] == []
    assert page.startswith("# kpybroker\n")
    assert "# Changelog" in page, "the changelog follows the readme"


def test_links_of_the_readme_and_the_changelog_lead_to_files() -> None:
    for page in ("README.md", "CHANGELOG.md"):
        for link in re.findall(r"\[[^\]\[]+\]\(([^)\s]+)\)", (ROOT / page).read_text()):
            if not re.match(r"[a-z]+:", link):
                assert (ROOT / link.partition("#")[0]).exists(), f"{page} links to {link}"


def test_the_wheel_contains_only_the_package(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "kpybroker/py.typed" in names
    assert {name.partition("/")[0] for name in names} == {
        "kpybroker",
        f"kpybroker-{message_version(names)}.dist-info",
    }
    assert any(name.endswith("licenses/LICENSE") for name in names)


def message_version(names: list[str]) -> str:
    (version,) = {match[1] for name in names if (match := re.match(r"kpybroker-(.+)\.dist-info/", name))}
    return version


def imports(node: ast.AST, *, at_load: bool = True) -> Iterator[tuple[str, bool]]:
    """The third-party packages that a module imports, and whether it imports them when it is imported itself."""
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = [node.module or ""]
    for name in names:
        top = name.partition(".")[0]
        if top != "kpybroker" and top not in sys.stdlib_module_names:
            yield top, at_load
    is_for_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if is_for_types or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        at_load = False
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.stmt | ast.excepthandler):
            yield from imports(inner, at_load=at_load)


@pytest.mark.slow
def test_modules_can_be_imported_with_the_required_packages() -> None:
    """Other packages are imported inside functions, where the error can name the extra that provides them."""
    for file in sorted(PACKAGE.rglob("*.py")):
        room = file.relative_to(PACKAGE).parts[0]
        allowed = RUNTIME | WITH_EXTRAS.get(room, set())
        for name, at_load in imports(ast.parse(file.read_text())):
            assert not at_load or name.replace("_", "-") in allowed, f"{file.name} imports {name} as it is loaded"


def commands_of(target: str, tmp_path: Path) -> str:
    """The commands that make would run in a fresh clone."""
    command = ["make", "--dry-run", target, f"VENV={tmp_path / 'venv'}"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_make_run_installs_what_a_broker_needs_and_make_check_the_rest(tmp_path: Path) -> None:
    assert ".[dev]" not in commands_of("run", tmp_path)
    assert commands_of("check", tmp_path).count(".[dev]") == 1
