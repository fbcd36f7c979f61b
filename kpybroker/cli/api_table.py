"""The commands `kpybroker api` and `kpybroker version`."""

from __future__ import annotations

from typing import Annotated

from kpybroker import BUILD, __version__
from kpybroker.cli import options
from kpybroker.cli.show import show_json, show_line, show_table
from kpybroker.wire.api import API, NEVER, Api, RunsOn

RUNS_ON = {RunsOn.ANY: "any broker", RunsOn.CONTROLLER: "controller"}


def api(
    as_json: options.Json = False,
    markdown: Annotated[bool, options.flag("--markdown", "As a Markdown table, for docs/protocol.md.")] = False,
) -> None:
    """Print the APIs that are served, and their versions."""
    if as_json:
        show_json([_facts(row) for row in API])
        return
    columns = ("KEY", "API", "VERSIONS", "FLEXIBLE", "FOR", "RUNS ON", "NOTE")
    rows = [tuple(_facts(row).values()) for row in API]
    if markdown:
        shown = ["| " + " | ".join(column.lower() for column in columns) + " |", "|---:|---|---|---:|---|---|---|"]
        shown += ["| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |" for row in rows]
        show_line("\n".join(shown))
        return
    show_table(columns, [(*row[:-1], row[-1] or "") for row in rows], folds=len(columns) - 1)


def _facts(row: Api) -> dict[str, str | int | None]:
    return {
        "key": row.key,
        "api": row.name,
        "versions": f"{row.min}-{row.max}" if row.min != row.max else f"{row.max}",
        "flexible": None if row.flexible == NEVER else row.flexible,
        "for": row.audience.value,
        "runs_on": RUNS_ON[row.runs_on],
        "note": row.note or None,
    }


def version() -> None:
    """Print the version and the build that runs: compiled or interpreted."""
    show_line(f"{__version__} ({BUILD})")
