"""How every help page looks: usage, what the command does, its arguments, commands and options."""

from __future__ import annotations

import shutil
import textwrap
from typing import NamedTuple

WIDTH_MAX = 110
WIDTH_MIN = 40
NAMES_WIDTH_MAX = 34
"""A longer name stands on a line of its own."""


class Row(NamedTuple):
    """An argument, option or command, and what it is for."""

    name: str
    told: str


class Page(NamedTuple):
    """A help page. `sections`: title and rows; those without rows are left out."""

    usage: str
    about: str
    sections: tuple[tuple[str, list[Row]], ...]
    epilog: str = ""

    def render(self) -> str:
        """The page, as wide as the terminal, and never wider than WIDTH_MAX."""
        width = max(WIDTH_MIN, min(WIDTH_MAX, shutil.get_terminal_size().columns))
        lines = [f"Usage: {self.usage}", "", *_paragraphs(self.about, width)]
        for title, rows in self.sections:
            if rows:
                lines += ["", f"{title}:", *_rows(rows, width)]
        if self.epilog:
            lines += ["", *_paragraphs(self.epilog, width)]
        return "\n".join(lines) + "\n"


def _paragraphs(text: str, width: int) -> list[str]:
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        lines += ["", *textwrap.wrap(" ".join(paragraph.split()), width, break_on_hyphens=False)]
    return lines[1:]


def _rows(rows: list[Row], width: int) -> list[str]:
    names = max((len(row.name) for row in rows if len(row.name) <= NAMES_WIDTH_MAX), default=NAMES_WIDTH_MAX)
    start = names + 4
    lines: list[str] = []
    for row in rows:
        told = textwrap.wrap(" ".join(row.told.split()), max(20, width - start), break_on_hyphens=False) or [""]
        if len(row.name) > names:
            lines.append(f"  {row.name}")
        else:
            lines.append(f"  {row.name:<{names}}  {told.pop(0)}".rstrip())
        lines += [" " * start + more for more in told]
    return lines
