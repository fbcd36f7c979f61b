"""Prints results: aligned tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Cell = str | int | None
WIDE_COLUMNS = 4096


def show_json(value: Any) -> None:
    """Print one JSON document on one line of stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, title: str | None = None, folds: int = 0
) -> None:
    """Print a table on stdout. Numbers are right-aligned; `-` stands for unknown values.

    If the terminal is too narrow, column number `folds` is wrapped. Nothing is wrapped if stdout is a pipe.
    """
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = WIDE_COLUMNS
    if title is not None:
        console.print(Text(title, style="bold"))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for at, column in enumerate(columns):
        kinds = {type(row[at]) for row in rows}
        is_number = int in kinds and str not in kinds
        table.add_column(column, justify="right" if is_number else "left", overflow="fold", no_wrap=at != folds)
    for row in rows:
        table.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    console.print(table)


def show_size(size_bytes: int) -> str:
    """A size in readable form, in powers of 1,000 bytes; `-` if it is unknown."""
    if size_bytes < 0:
        return "-"
    amount = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 99.5 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} TB"


def show_line(text: str) -> None:
    """Print a plain line on stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def remark(text: str) -> None:
    """Print a line for people on stderr, so that it does not get into the input of programs that read stdout."""
    print(text, file=sys.stderr, flush=True)
