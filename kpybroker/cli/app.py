"""The commands that ask a broker (typer); what a command does is in the module of its family."""

from __future__ import annotations

from typing import Annotated

import typer

from kpybroker import __version__
from kpybroker.cli import archive, groups, options, records, storage, topics
from kpybroker.cli.arguments import run_serving
from kpybroker.cli.show import show_json, show_line, show_table
from kpybroker.wire.api import API, NEVER, Api, RunsOn

app = typer.Typer(
    name="kpybroker",
    help="A Kafka broker in Python: the real protocol, a real log, no JVM.",
    epilog="Each command has --help. To begin with: `kpybroker dev` in one window, `kpybroker produce greetings` and "
    "`kpybroker consume greetings --from-beginning` in another.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
RUNS_ON = {RunsOn.ANY: "any broker", RunsOn.CONTROLLER: "controller"}
PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@app.callback()
def everywhere(bootstrap: options.Bootstrap = None, timeout: options.Timeout = None) -> None:
    """A Kafka broker in Python: the real protocol, a real log, no JVM."""


@app.command(context_settings=PASSED_ON)
def dev(context: typer.Context) -> None:
    """Start a broker for this laptop: on 127.0.0.1:9092, its data in ./kpybroker-data."""
    run_serving(["dev", *context.args])


@app.command(context_settings=PASSED_ON)
def serve(context: typer.Context) -> None:
    """Start a broker from a properties file."""
    run_serving(["serve", *context.args])


app.add_typer(topics.app)
app.add_typer(groups.app)
app.add_typer(archive.app)
app.add_typer(storage.app)
app.command()(records.produce)
app.command()(records.consume)


@app.command()
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


@app.command()
def version() -> None:
    """Print the version."""
    show_line(__version__)
