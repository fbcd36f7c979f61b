"""The program `kpybroker` and its common options. The commands are in `command_table.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from kpybroker import BUILD, __version__
from kpybroker.cli import options
from kpybroker.cli.command_table import Program
from kpybroker.cli.show import show_line

app = typer.Typer(
    name="kpybroker",
    cls=Program,
    help="A Kafka broker in Python: the real protocol, a real log, no JVM.",
    epilog="Each command has --help. To start: `kpybroker dev` in one window, `kpybroker produce greetings` and "
    "`kpybroker consume greetings --from-beginning` in another.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        show_line(f"kpybroker {__version__} ({BUILD})")
        raise typer.Exit


@app.callback()
def everywhere(
    bootstrap: options.Bootstrap = None,
    command_config: options.CommandConfig = None,
    timeout: options.Timeout = None,
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A Kafka broker in Python: the real protocol, a real log, no JVM."""
