"""Tests that docs/modules.md has the first sentence of every module's docstring."""

from __future__ import annotations

from tests.modules_page import DECLARATIONS, PACKAGE, PAGE, page, sentence


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "write it with python -m tests.modules_page"


def test_every_module_has_a_line() -> None:
    listed = page()
    for file in PACKAGE.rglob("*.py"):
        folder = str(file.parent.relative_to(PACKAGE))
        if file.name.startswith("__") or folder in DECLARATIONS:
            continue
        assert sentence(file), f"{file} has no docstring"
        title = f"`{file.name}`" if folder != "." else f"## {file.name}"
        assert f"{title}: {sentence(file)}" in listed or f"{title}\n\n{sentence(file)}" in listed, file
