"""The options of `dev` and `serve`, read by argparse: a broker is up before typer would have been imported."""

from __future__ import annotations

import argparse
from pathlib import Path

SERVING = ("dev", "serve")


def port_number(text: str) -> int:
    """A TCP port, 0 for a free one."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: write a number from 0 to 65535, 0 for a free one")
    return int(text)


def run_serving(arguments: list[str]) -> None:
    """Run `dev` or `serve`. Exits with 2 and one line for arguments that cannot be read. Raises ConfigError."""
    parser = argparse.ArgumentParser(prog="kpybroker", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    dev = commands.add_parser("dev", help="start a broker for this laptop", allow_abbrev=False)
    dev.add_argument("--port", type=port_number, default=9092, help="port on 127.0.0.1; 0 picks a free one (9092)")
    where = dev.add_mutually_exclusive_group()
    where.add_argument("--data-dir", type=Path, metavar="DIR", help="where the data lives (./kpybroker-data)")
    where.add_argument("--ephemeral", action="store_true", help="a temporary directory, removed on exit")
    serve = commands.add_parser("serve", help="start a broker from a properties file", allow_abbrev=False)
    serve.add_argument("--config", type=Path, metavar="FILE", help="server.properties, in Kafka's names")
    for command in (dev, serve):
        command.add_argument(
            "--set",
            dest="settings",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a setting by Kafka's name",
        )
        command.add_argument(
            "--ready-file", type=Path, metavar="PATH", help="when serving, write the ready line's facts here as JSON"
        )
    given = parser.parse_args(arguments)
    from kpybroker.cli import serving

    if given.command == "dev":
        serving.dev(
            given.port,
            given.data_dir,
            ephemeral=given.ephemeral,
            settings=given.settings,
            ready_file=given.ready_file,
        )
    else:
        serving.serve(given.config, settings=given.settings, ready_file=given.ready_file)
