"""`kpybroker storage`: data directories of brokers that are stopped.

`format`, `info` and `random-uuid` are what Apache Kafka's kafka-storage does, with its options and its words.
"""

from __future__ import annotations

from pathlib import Path
from random import SystemRandom
from typing import Annotated

import typer

from kpybroker.cli.formatting import Wishes, describe, format_directories
from kpybroker.cli.properties import read_properties
from kpybroker.cli.show import show_line
from kpybroker.storage.formatting import encode_id, random_id

app = typer.Typer(
    name="storage",
    help="Format, look at, check and repair the data directories of a stopped broker.",
    no_args_is_help=True,
)

Config = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", help="The node's server.properties, as Apache Kafka reads it.")
]


@app.command("format")
def format_(
    config: Config,
    cluster_id: Annotated[
        str, typer.Option("--cluster-id", "-t", metavar="ID", help="The cluster's id, the same on all its nodes.")
    ],
    ignore_formatted: Annotated[
        bool,
        typer.Option("--ignore-formatted", "-g", metavar="", help="Pass over directories that are formatted already."),
    ] = False,
    standalone: Annotated[
        bool,
        typer.Option("--standalone", "-s", metavar="", help="This controller is the first voter of a quorum, alone."),
    ] = False,
    no_initial_controllers: Annotated[
        bool,
        typer.Option(
            "--no-initial-controllers", "-N", metavar="", help="Others know who votes; this node may be added later."
        ),
    ] = False,
    initial_controllers: Annotated[
        str | None,
        typer.Option(
            "--initial-controllers",
            "-I",
            metavar="LIST",
            help="The first voters, ID@HOST:PORT:DIRECTORY-ID,...; the same on all nodes.",
        ),
    ] = None,
    release_version: Annotated[
        str | None,
        typer.Option("--release-version", "-r", metavar="VERSION", help="Of the first features; 4.3-IV0 is served."),
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option("--feature", "-f", metavar="NAME=LEVEL", help="Begin with this level; may be repeated."),
    ] = None,
) -> None:
    """Format the empty directories of a node. `dev` and `serve` do so by themselves."""
    wishes = Wishes(
        cluster_id,
        standalone=standalone,
        none=no_initial_controllers,
        initial=initial_controllers,
        release=release_version,
        features=tuple(feature or ()),
        ignores_formatted=ignore_formatted,
    )
    for line in format_directories(read_properties(config), str(config), wishes):
        show_line(line)


@app.command()
def info(config: Config) -> None:
    """Show which directories a node has, whose they are, and what is wrong with them."""
    lines, problems = describe(read_properties(config), str(config))
    for line in lines:
        show_line(line)
    if problems:
        raise typer.Exit(1)


@app.command("random-uuid")
def random_uuid() -> None:
    """Print a random id, for a cluster or a directory."""
    show_line(encode_id(random_id(SystemRandom())))
