"""Parses the options of `dev` and `serve` with argparse, because importing typer would take too long at each start."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kpybroker.cli.help_page import HelpPage, HelpRow
from kpybroker.cli.local_cluster import AUTO, BROKERS_MAX
from kpybroker.errors import ConfigError

if TYPE_CHECKING:
    from kpybroker.world import World

DEV = (
    "Start a broker or a cluster of several for local development, on 127.0.0.1. It prints one line, `kpybroker "
    "ready bootstrap=HOST:PORT ...`, when clients can connect, and stops cleanly on Ctrl-C or SIGTERM, or when its "
    "terminal is closed (SIGHUP)."
)
SERVE = (
    "Start a broker with Kafka's settings, from a properties file, from --set, or both (--set wins). It prints one "
    "line, `kpybroker ready bootstrap=HOST:PORT ...`, when clients can connect, and stops cleanly on Ctrl-C or SIGTERM."
)


EXCLUSIVE = {
    "detach": ("ephemeral", "ready_file", "until_stdin_closes", "commands", "control"),
    "control": ("data_dir", "http_port", "until_stdin_closes", "commands"),
}
"""Options of `dev`, and those that they exclude. With --control the data is temporary."""
HELP = "-h, --help"
HELP_ROW = HelpRow(HELP, "Show this page.")


class _Parser(argparse.ArgumentParser):
    """Prints errors as one line and help as a HelpPage, like all other commands."""

    def format_help(self) -> str:
        rows = [
            HelpRow(", ".join(each.option_strings) + (f" {each.metavar}" if each.metavar else ""), each.help or "")
            for each in self._actions
            if each.option_strings and each.help != argparse.SUPPRESS
        ]
        ours = [row for row in rows if row.name != HELP]
        return HelpPage(f"{self.prog} [OPTIONS]", self.description or "", (("Options", [*ours, HELP_ROW]),)).render()

    def error(self, message: str) -> NoReturn:
        text = message.removeprefix("argument ").replace(": must be", " must be", 1)
        self.exit(2, f"kpybroker: {text}; see `{self.prog} --help`\n")


def port_number(text: str) -> int:
    """Parse a TCP port; 0 stands for a free one."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: write a number from 0 to 65535, 0 for a free one")
    return int(text)


def broker_count(text: str) -> int:
    """Parse the number of brokers; `auto` is AUTO."""
    if text == "auto":
        return AUTO
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= BROKERS_MAX:
        raise argparse.ArgumentTypeError(f"must be auto, or from 1 to {BROKERS_MAX}, not {text!r}")
    return int(text)


def run_serving(arguments: list[str], world: World | None = None) -> None:
    """Run `dev` or `serve`, in the given World of the test kit if there is one.

    Exits with 2 and one line for invalid arguments. Raises ConfigError.
    """
    given = read(arguments)
    from kpybroker.cli import lifetime as lifetimes
    from kpybroker.cli import local_cluster, serving

    if given.command == "dev" and given.detach:
        from kpybroker.cli import detaching

        detaching.start([each for each in arguments if each != "--detach"], given.data_dir or serving.DEV_DATA_DIR)
        return
    lifetime = lifetimes.Lifetime(
        given.ready_file,
        until_stdin_closes=given.until_stdin_closes or given.commands,
        takes_commands=given.commands,
        world=world,
    )
    if given.command == "dev":
        settings = serving.parse_settings(given.settings)
        wanted = local_cluster.LocalClusterOptions(given.brokers, given.port, given.http_port, settings)
        serving.dev(wanted, given.data_dir, ephemeral=given.ephemeral, is_secure=given.secure, lifetime=lifetime)
    elif given.settings_from_parent:
        own = lifetimes.read_settings()
        serving.serve_one_of_several({**own, **serving.parse_settings(given.settings)}, lifetime)
    elif given.config is None and not given.settings and not given.from_env:
        raise ConfigError(
            "serve needs Kafka's settings: --config FILE, --set NAME=VALUE or --from-env; see `kpybroker serve "
            "--help`, and `kpybroker dev` for a broker without settings"
        )
    else:
        environment = os.environ if given.from_env else None
        serving.serve(
            given.config,
            environment,
            given.settings,
            http_port=given.http_port,
            brokers=given.brokers,
            lifetime=lifetime,
        )


def help_of(command: str) -> str:
    """The help page of `dev` or `serve`."""
    _, dev, serve = _parsers()
    return (dev if command == "dev" else serve).format_help()


def _parsers() -> tuple[_Parser, _Parser, _Parser]:
    """The parsers of the program, of `dev` and of `serve`."""
    parser = _Parser(prog="kpybroker", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    dev = commands.add_parser("dev", description=DEV, allow_abbrev=False)
    _add_dev_options(dev)
    serve = commands.add_parser("serve", description=SERVE, allow_abbrev=False)
    serve.add_argument("--config", type=Path, metavar="FILE", help="A server.properties as Apache Kafka reads it.")
    serve.add_argument(
        "--from-env",
        action="store_true",
        help="Read KAFKA_* variables and CLUSTER_ID as the image apache/kafka does; they override FILE.",
    )
    serve.add_argument(
        "--brokers",
        type=broker_count,
        default=1,
        metavar="N",
        help="Number of brokers on this machine, each in its own process, or auto for one for each usable core "
        "(default: 1). The first has the file's node.id, ports and log.dirs; the others follow.",
    )
    serve.add_argument("--settings-from-parent", action="store_true", help=argparse.SUPPRESS)
    for command in (dev, serve):
        command.add_argument(
            "--set",
            dest="settings",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="A setting by Kafka's name, such as num.partitions=3; may be repeated.",
        )
        command.add_argument(
            "--http-port",
            type=port_number,
            metavar="PORT",
            help="Port of /metrics, /healthz and /readyz, for all brokers; 0 picks a free one.",
        )
        command.add_argument(
            "--ready-file",
            type=Path,
            metavar="PATH",
            help="Write the content of the ready line to this file, as JSON, when clients can connect.",
        )
        command.add_argument(
            "--until-stdin-closes",
            action="store_true",
            help="Stop when standard input is closed, so that the broker ends with the process that started it.",
        )
        command.add_argument(
            "--commands",
            action="store_true",
            help=argparse.SUPPRESS,
        )
    return parser, dev, serve


def _add_dev_options(dev: _Parser) -> None:
    port = "Port on 127.0.0.1; 0 picks a free one (9092)."
    dev.add_argument("--port", type=port_number, default=9092, metavar="PORT", help=port)
    dev.add_argument(
        "--brokers",
        type=broker_count,
        default=1,
        metavar="N",
        help="Number of brokers, each in its own process, on --port and the following ports (default: 1); auto: one "
        "for each usable core, without replicas.",
    )
    where = dev.add_mutually_exclusive_group()
    where.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="Data directory, created if it does not exist (./kpybroker-data)."
    )
    where.add_argument(
        "--ephemeral", action="store_true", help="Keep the data in a temporary directory, removed on exit."
    )
    dev.add_argument(
        "--secure",
        action="store_true",
        help="Use TLS, a login and ACLs. Prints a user, a password and the settings of clients, kept in DIR.secure.",
    )
    dev.add_argument(
        "--control",
        action="store_true",
        help="For tests in any language: an HTTP API that stops brokers, injects faults and advances their clock.",
    )
    dev.add_argument(
        "--control-port",
        type=port_number,
        default=9095,
        metavar="PORT",
        help="Port of that API on 127.0.0.1; 0 picks a free one (9095).",
    )
    dev.add_argument(
        "--detach",
        action="store_true",
        help="Run in the background: return when clients can connect. `kpybroker stop` ends it; its log is DIR.log.",
    )


def read(arguments: list[str]) -> argparse.Namespace:
    """The options of `dev` or `serve`. Exits with 2 and one line for invalid ones."""
    parser, dev, serve = _parsers()
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        (dev if given.command == "dev" else serve).error(f"unknown argument {' '.join(unknown)}")
    if given.commands and given.brokers != 1:
        (dev if given.command == "dev" else serve).error("--commands is for one broker; omit --brokers")
    if given.command == "dev" and given.control and given.brokers == AUTO:
        dev.error("--control needs a number of --brokers")
    for one, others in EXCLUSIVE.items():
        if given.command == "dev" and getattr(given, one):
            for name in others:
                if getattr(given, name):
                    dev.error(f"--{one} and --{name.replace('_', '-')} cannot be used together")
    return given
