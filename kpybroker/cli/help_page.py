"""The layout of all help pages: usage, description, arguments, commands and options."""

from __future__ import annotations

from typing import NamedTuple

WIDTH_MAX = 110
WIDTH_MIN = 40
NAMES_WIDTH_MAX = 34
"""A longer name gets its own line."""


class HelpRow(NamedTuple):
    """An argument, option or command, and its description."""

    name: str
    description: str


class HelpPage(NamedTuple):
    """A help page. `sections`: titles and rows; sections without rows are omitted."""

    usage: str
    about: str
    sections: tuple[tuple[str, list[HelpRow]], ...]
    epilog: str = ""

    def render(self) -> str:
        """The page as text, as wide as the terminal but at most WIDTH_MAX."""
        import shutil

        width = max(WIDTH_MIN, min(WIDTH_MAX, shutil.get_terminal_size().columns))
        lines = [f"Usage: {self.usage}", "", *_paragraphs(self.about, width)]
        for title, rows in self.sections:
            if rows:
                lines += ["", f"{title}:", *_rows(rows, width)]
        if self.epilog:
            lines += ["", *_paragraphs(self.epilog, width)]
        return "\n".join(lines) + "\n"


def _paragraphs(text: str, width: int) -> list[str]:
    import textwrap  # a broker starts without it

    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        lines += ["", *textwrap.wrap(" ".join(paragraph.split()), width, break_on_hyphens=False)]
    return lines[1:]


def _rows(rows: list[HelpRow], width: int) -> list[str]:
    import textwrap

    names = max((len(row.name) for row in rows if len(row.name) <= NAMES_WIDTH_MAX), default=NAMES_WIDTH_MAX)
    start = names + 4
    lines: list[str] = []
    for row in rows:
        wrapped = textwrap.wrap(" ".join(row.description.split()), max(20, width - start), break_on_hyphens=False) or [
            ""
        ]
        if len(row.name) > names:
            lines.append(f"  {row.name}")
        else:
            lines.append(f"  {row.name:<{names}}  {wrapped.pop(0)}".rstrip())
        lines += [" " * start + more for more in wrapped]
    return lines
