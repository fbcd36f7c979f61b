"""The options of `dev` and `serve`, read by argparse: a broker is up before typer would have been imported."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NoReturn

DEV = (
    "Start a broker for this laptop, on 127.0.0.1, or several that are one cluster. It prints one line, `kpybroker "
    "ready bootstrap=HOST:PORT ...`, when clients may come, and stops cleanly at Ctrl-C or SIGTERM."
)
SERVE = (
    "Start a broker with Kafka's settings, from a properties file, from --set, or both (--set wins). It prints one "
    "line, `kpybroker ready bootstrap=HOST:PORT ...`, when clients may come, and stops cleanly at Ctrl-C or SIGTERM."
)


class _Parser(argparse.ArgumentParser):
    """One line for what cannot be read, as everywhere; the usage is what --help is for."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"kpybroker: {message}; see `{self.prog} --help`\n")


def port_number(text: str) -> int:
    """A TCP port, 0 for a free one."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: write a number from 0 to 65535, 0 for a free one")
    return int(text)


def broker_count(text: str) -> int:
    """How many brokers."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 50:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of brokers: write a number from 1 to 50")
    return int(text)


def run_serving(arguments: list[str]) -> None:
    """Run `dev` or `serve`. Exits with 2 and one line for arguments that cannot be read. Raises ConfigError."""
    parser = _Parser(prog="kpybroker", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    dev = commands.add_parser("dev", description=DEV, allow_abbrev=False)
    dev.add_argument("--port", type=port_number, default=9092, help="port on 127.0.0.1; 0 picks a free one (9092)")
    dev.add_argument(
        "--brokers",
        type=broker_count,
        default=1,
        metavar="N",
        help="so many brokers, each a process, on --port and the ports behind it (1)",
    )
    where = dev.add_mutually_exclusive_group()
    where.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="where the data is kept, made if need be (./kpybroker-data)"
    )
    where.add_argument("--ephemeral", action="store_true", help="a temporary directory, removed on exit")
    serve = commands.add_parser("serve", description=SERVE, allow_abbrev=False)
    serve.add_argument("--config", type=Path, metavar="FILE", help="a server.properties as Apache Kafka reads it")
    serve.add_argument(
        "--from-env",
        action="store_true",
        help="settings from KAFKA_* variables and CLUSTER_ID, as the image apache/kafka reads them; they win over FILE",
    )
    for command in (dev, serve):
        command.add_argument(
            "--set",
            dest="settings",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a setting by Kafka's name, such as num.partitions=3; may be repeated",
        )
        command.add_argument(
            "--http-port",
            type=port_number,
            metavar="PORT",
            help="serve /metrics, /healthz and /readyz here, with --brokers from here on; 0 picks a free one",
        )
        command.add_argument(
            "--ready-file", type=Path, metavar="PATH", help="when serving, write the ready line's facts here as JSON"
        )
        command.add_argument(
            "--until-stdin-closes", action="store_true", help="stop when standard input ends: with whoever started it"
        )
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        (dev if given.command == "dev" else serve).error(f"unknown argument {' '.join(unknown)}")
    from kpybroker.cli import local_cluster, serving

    lifetime = serving.Lifetime(given.ready_file, until_stdin_closes=given.until_stdin_closes)
    if given.command == "dev":
        settings = serving.parse_settings(given.settings)
        wanted = local_cluster.Wanted(given.brokers, given.port, given.http_port, settings)
        serving.dev(wanted, given.data_dir, ephemeral=given.ephemeral, lifetime=lifetime)
    else:
        environment = os.environ if given.from_env else None
        serving.serve(given.config, environment, given.settings, http_port=given.http_port, lifetime=lifetime)
