"""The commands and their options (typer); what a command does is in the module of its family."""

from __future__ import annotations

import typer

from kpybroker import __version__
from kpybroker.cli.arguments import run_serving

app = typer.Typer(
    name="kpybroker",
    help="A Kafka broker in Python: the real protocol, a real log, no JVM.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@app.command(context_settings=PASSED_ON)
def dev(context: typer.Context) -> None:
    """Start a broker for this laptop."""
    run_serving(["dev", *context.args])


@app.command(context_settings=PASSED_ON)
def serve(context: typer.Context) -> None:
    """Start a broker from a properties file."""
    run_serving(["serve", *context.args])


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)
