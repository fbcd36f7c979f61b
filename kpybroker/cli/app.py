"""The commands and their options (typer); what a command does is in the module of its family."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kpybroker import __version__
from kpybroker.errors import ConfigError

app = typer.Typer(
    name="kpybroker",
    help="A Kafka broker in Python: the real protocol, a real log, no JVM.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting by Kafka's name; may be repeated.")
]
ReadyFile = Annotated[
    Path | None, typer.Option("--ready-file", help="When serving, write the ready line's facts here as JSON.")
]


def run(arguments: list[str]) -> None:
    """Run one command line; a problem of settings or arguments is one line on stderr and exit code 2."""
    try:
        app(arguments, prog_name="kpybroker")
    except ConfigError as problem:
        print(f"kpybroker: {problem}", file=sys.stderr)
        sys.exit(2)


@app.command()
def dev(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 picks a free one.", min=0, max=65535)] = 9092,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data lives; default ./kpybroker-data.")] = None,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="A temporary directory, removed on exit.")] = False,
    settings: Settings = None,
    ready_file: ReadyFile = None,
) -> None:
    """Start a broker for this laptop."""
    from kpybroker.cli import serving

    serving.dev(port, data_dir, ephemeral=ephemeral, settings=settings or [], ready_file=ready_file)


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(help="A server.properties file, in Kafka's names.")] = None,
    settings: Settings = None,
    ready_file: ReadyFile = None,
) -> None:
    """Start a broker from a properties file."""
    from kpybroker.cli import serving

    serving.serve(config, settings=settings or [], ready_file=ready_file)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)
