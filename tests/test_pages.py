"""Tests that every page is correct: its blocks run unchanged, and the files, commands and settings that it names
exist."""

from __future__ import annotations

import functools
import re
import shlex
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from kpybroker.cli.app import app
from kpybroker.config import parse_config
from tests import pages
from tests.cli.shell import kpybroker_process

ROOT = pages.ROOT
ALL: Any = get_command(app)
LONG = (
    "docs/developing.md",
    "docs/fewer-partitions.md",
    "docs/recipes.md",
    "docs/record-filters.md",
    "docs/retries.md",
    "docs/scheduled-delivery.md",
    "docs/testing.md",
    "docs/tutorial.md",
    "docs/views.md",
    "docs/work-queue.md",
)
RUN_HERE = ("README.md", *LONG)
RUN_ELSEWHERE = {
    "docs/added-nodes.md": "compat_tests/test_added_nodes_page.py",
    "docs/archive.md": "compat_tests/test_archive_page.py",
    "docs/cores.md": "compat_tests/test_cores_page.py",
    "docs/mixed-clusters.md": "compat_tests/test_mixed_cluster_page.py",
    "docs/moving-to-apache-kafka.md": "compat_tests/test_takeover_page.py",
    "docs/runbook.md": "compat_tests/test_runbook.py",
    "docs/security-acls.md": "compat_tests/test_acls.py",
    "docs/security.md": "tests/test_security_page.py",
    "docs/spark.md": "compat_tests/test_spark_page.py",
}
"""Pages whose blocks need Java or several ports, and the test that runs them."""
SCRIPTS = (
    "docs/added-nodes.md",
    "docs/cores.md",
    "docs/mixed-clusters.md",
    "docs/moving-to-apache-kafka.md",
    "docs/runbook.md",
    "docs/security-acls.md",
)
"""The pages that `compat_tests/pages.py` runs, with Kafka's own tools."""
SERVING = ("dev", "serve")
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md"))
)
each_page = pytest.mark.parametrize("page", PAGES)


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


@pytest.mark.parametrize("page", ["README.md", *(pytest.param(page, marks=pytest.mark.slow) for page in LONG)])
def test_a_page_works_unchanged(page: str, tmp_path: Path) -> None:
    said = pages.run(page, tmp_path)
    for block, printed in zip(pages.blocks_of(page), said, strict=True):
        assert pages.is_shown(block.shown, printed), f"{page} shows\n{block.shown}\nand printed is\n{printed}"


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/developing.md", "docs/spark.md", "docs/archive.md"])
def test_a_page_uses_topics_that_the_readme_has_not_filled(page: str) -> None:
    """Readers may have followed the README before, so their broker may still have its records."""
    filled = set(re.findall(r"kpybroker produce (\w+)", text_of("README.md")))
    assert filled
    assert not filled & set(re.findall(r"\w+", text_of(page)))


@each_page
def test_every_block_is_run(page: str) -> None:
    named = re.findall(r"^ *```(\S+)$", text_of(page), re.MULTILINE)
    assert set(named) <= {"sh", "python", "json", "properties", "text", "yaml"}, (
        "name a shell `sh`; what is not run is `text`, or has no name"
    )
    fences = [language for language in named if language in ("sh", "python")]
    if page in RUN_ELSEWHERE:
        assert re.search(rf'pages\.run\("(?:docs/)?{Path(page).name}"', text_of(RUN_ELSEWHERE[page]))
    elif fences:
        assert page in RUN_HERE, "no test runs the blocks of this page"
    blocks = pages.blocks_of(page)
    if page not in SCRIPTS:
        assert len(blocks) == len(fences), "a block is indented, or its marks are in another order"
    for block in blocks:
        if block.run_by:
            told = set(re.findall(r"\b(?:spark|fs)\.[\w.]+", block.text))
            assert all(option in text_of(block.run_by) for option in told), block.run_by


@each_page
def test_every_link_has_a_target(page: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", text_of(page)):
        there = (ROOT / page).parent / target if target else ROOT / page
        assert there.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, anchor


@each_page
def test_every_make_target_exists(page: str) -> None:
    made = set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([\w-]+)", text_of(page), re.MULTILINE)) <= made


@each_page
def test_every_setting_on_a_command_line_exists(page: str) -> None:
    for setting in re.findall(r"kpybroker (?:dev|serve)\b[^`\n]* --set[ =]([a-z.]+=\w+)", text_of(page)):
        parse_config(dict([setting.split("=")]))


def command_lines(page: str) -> list[str]:
    """The command lines in a page: `kpybroker ...` in backticks, and at the beginning of a line or after a pipe."""
    text = text_of(page)
    lines = re.findall(r"`(kpybroker [a-z][^`]*)`", text)
    for block in re.findall(r"^ *```sh\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        lines += re.findall(
            r"(?:^|\| )(kpybroker [a-z](?:'[^'\n]*'|[^'\n])*?)(?: &| \||  #|;|\)|$)", block, re.MULTILINE
        )
    return [" ".join(line.split()) for line in lines if not line.startswith("kpybroker ready")]


@each_page
def test_every_command_and_option_exists(page: str) -> None:
    for line in command_lines(page):
        assert not unknown_in(line), f"{line}: {unknown_in(line)}"


def test_every_command_in_texts_of_the_product_exists() -> None:
    """This test checks the commands in help texts, errors and docstrings; `X` stands for values that are filled in."""
    told = 0
    for source in sorted((ROOT / "kpybroker").rglob("*.py")):
        for text in re.findall(r"`(kpybroker (?!ready)[a-z][^`]*)`", source.read_text()):
            joined = re.sub(r"\{[^}]*\}", "X", re.sub(r'"\s*f?"', "", text))
            assert not unknown_in(" ".join(joined.split())), f"{source.relative_to(ROOT)}: {joined}"
            told += 1
    assert told > 20


def unknown_in(line: str) -> list[str]:
    """The parts of a command line that are neither a command nor one of its options; `a|b` is two."""
    unknown: list[str] = []
    for one in alternatives(line):
        words = shlex.split(one)[1:]
        path: list[str] = []
        while len(path) < len(words) and words[len(path)] in getattr(command_at(*path), "commands", {}):
            path.append(words[len(path)])
        if path == ["archive"]:
            path.append("copy")  # the program reads these arguments itself
        command = command_at(*path)
        further = words[len(path) :]
        if not path or (getattr(command, "commands", {}) and further and not further[0].startswith("-")):
            unknown.append(one)
        options = {option for each in (*ALL.params, *command.params) for option in each.opts} | {"--help"}
        if path and path[0] in SERVING:
            options |= serving_options(path[0])
        unknown += [word for word in words if word.startswith("--") and word.split("=")[0] not in options]
    return unknown


def command_at(*path: str) -> Any:
    command = ALL
    for name in path:
        command = command.commands[name]
    return command


@functools.cache
def serving_options(name: str) -> set[str]:
    out, _ = kpybroker_process(name, "--help").communicate(timeout=pages.WAIT_S)
    return set(re.findall(r"--[a-z-]+", out))


def alternatives(line: str) -> list[str]:
    """`topics list|create` stands for two command lines."""
    found = re.search(r"(\S+\|\S+)", line)
    if found is None:
        return [line]
    return [each for part in found[1].split("|") for each in alternatives(line.replace(found[1], part, 1))]


def test_the_program_is_installed_with_the_package() -> None:
    (script,) = entry_points(group="console_scripts", name="kpybroker")
    assert script.value == "kpybroker.__main__:main"
    (plugin,) = entry_points(group="pytest11", name="kpybroker")
    assert plugin.value == "kpybroker.testing.plugin"


def test_every_page_is_in_the_index() -> None:
    index = text_of("docs/README.md")
    listed = set(re.findall(r"\]\(([^)#]+)\)", index))
    pages_of_docs = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages_of_docs <= listed


def test_the_readme_is_short() -> None:
    assert len(text_of("README.md").encode()) <= 7168


def test_mistakes_in_pages_are_detected(tmp_path: Path) -> None:
    """The mistakes are a block that fails, a line that is shown but not printed, and an extra that does not exist."""
    assert pages.is_shown("a\nc…\n", "a\nb\ncd\n")
    assert not pages.is_shown("c\na\n", "a\nb\nc\n")
    assert not pages.is_shown("b…\n", "a\n")
    assert unknown_in("kpybroker topics mend") == ["kpybroker topics mend"]
    assert unknown_in("kpybroker topics list --jsn") == ["--jsn"]
    assert unknown_in("kpybroker dev --prt 0") == ["--prt"]
    assert not unknown_in("kpybroker topics list|create --json")
    for words in (["install", "kpybroker"], ["install", ".[tests]"], ["install", "left-pad"]):
        with pytest.raises(SystemExit):
            pages.pip(words)
    pages.pip(["install", ".[test]", "confluent-kafka"])
    page = tmp_path / "page.md"
    page.write_text("```sh\ntrue\n```\n\n```sh\nkpybroker topics list --bootstrap 127.0.0.1:1\ntrue\n```\n")
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(AssertionError, match="no server listens"):
        pages.run(str(page), folder)
