"""`kpybroker storage`: formats, describes, checks and repairs the data directories of a stopped broker.

`format`, `info` and `random-uuid` have the options and the output of Apache Kafka's kafka-storage.
"""

from __future__ import annotations

from pathlib import Path
from random import SystemRandom
from typing import Annotated

import typer

from kpybroker.cli import checking
from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.formatting import FormatOptions, describe, format_directories
from kpybroker.cli.options import Json, flag
from kpybroker.cli.show import show_line
from kpybroker.config.property_files import read_properties
from kpybroker.storage.dirs.formatting import encode_id, random_id

app = typer.Typer(
    name="storage",
    cls=CommandGroup,
    help="Format, describe, check and repair the data directories of a stopped broker.",
    no_args_is_help=True,
)

Config = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", help="The node's server.properties, as Apache Kafka reads it.")
]

Feature = Annotated[
    list[str] | None,
    typer.Option("--feature", "-f", metavar="NAME=LEVEL", help="Start with this level; may be repeated."),
]
Scram = Annotated[
    list[str] | None,
    typer.Option(
        "--add-scram",
        "-S",
        metavar="CREDENTIAL",
        help="Start with a user: 'SCRAM-SHA-256=[name=alice,password=...]'; may be repeated.",
    ),
]


@app.command("format")
def format_(
    config: Config,
    cluster_id: Annotated[
        str, typer.Option("--cluster-id", "-t", metavar="ID", help="The cluster's id, the same on all its nodes.")
    ],
    ignore_formatted: Annotated[
        bool,
        typer.Option("--ignore-formatted", "-g", metavar="", help="Skip directories that are already formatted."),
    ] = False,
    standalone: Annotated[
        bool,
        typer.Option("--standalone", "-s", metavar="", help="This controller is the only initial voter."),
    ] = False,
    no_initial_controllers: Annotated[
        bool,
        typer.Option(
            "--no-initial-controllers",
            "-N",
            metavar="",
            help="The voters are other nodes; this node can be added later.",
        ),
    ] = False,
    initial_controllers: Annotated[
        str | None,
        typer.Option(
            "--initial-controllers",
            "-I",
            metavar="LIST",
            help="The initial voters, ID@HOST:PORT:DIRECTORY-ID,...; the same on all nodes.",
        ),
    ] = None,
    release_version: Annotated[
        str | None,
        typer.Option(
            "--release-version",
            "-r",
            metavar="VERSION",
            help="Release of the initial features; only 4.3-IV0 is supported.",
        ),
    ] = None,
    feature: Feature = None,
    add_scram: Scram = None,
) -> None:
    """Format the empty directories of a node. `dev` and `serve` do this automatically."""
    wishes = FormatOptions(
        cluster_id,
        standalone=standalone,
        none=no_initial_controllers,
        initial=initial_controllers,
        release=release_version,
        features=tuple(feature or ()),
        ignores_formatted=ignore_formatted,
        scram=tuple(add_scram or ()),
    )
    for line in format_directories(read_properties(config), str(config), wishes):
        show_line(line)


@app.command()
def info(config: Config) -> None:
    """Show a node's directories, their cluster and node ids, and their problems."""
    lines, problems = describe(read_properties(config), str(config))
    for line in lines:
        show_line(line)
    if problems:
        raise typer.Exit(1)


@app.command("random-uuid")
def random_uuid() -> None:
    """Print a random id, for a cluster or a directory."""
    show_line(encode_id(random_id(SystemRandom())))


Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="A data directory; if there are several, one at a time.")
]
Topic = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Only this topic's partitions.")]
Partition = Annotated[
    int | None, typer.Option("--partition", metavar="N", min=0, help="Only partitions with this number.")
]
DATA_DIR = Path("kpybroker-data")


@app.command()
def check(
    directory: Directory = DATA_DIR, topic: Topic = None, partition: Partition = None, as_json: Json = False
) -> None:
    """Read all files of a stopped broker's directory and list the problems. Exits with 1 if there are any."""
    if checking.check(directory, topic, partition, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def repair(
    directory: Directory = DATA_DIR,
    topic: Topic = None,
    partition: Partition = None,
    dry_run: Annotated[bool, flag("--dry-run", "Only show what would be done, as without --yes.")] = False,
    yes: Annotated[bool, flag("--yes", "Make the repairs. Replaced files are kept in DIR.set-aside.")] = False,
) -> None:
    """Show the repairs of a stopped broker's directory; with --yes, make them. Exits with 1 if problems remain."""
    if checking.repair(directory, topic, partition, does=yes and not dry_run):
        raise typer.Exit(1)
