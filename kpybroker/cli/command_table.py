"""All commands by name. The module of a command is imported only when that command runs."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import typer
import typer.main

from kpybroker.cli.command_help import Command, CommandGroup

COMMANDS = {
    "dev": (
        "serving_commands:dev",
        "Start a broker for local development, on 127.0.0.1:9092, with its data in ./kpybroker-data.",
    ),
    "serve": ("serving_commands:serve", "Start a broker from a properties file."),
    "wait": (
        "awaiting:wait",
        "Wait up to --timeout seconds for the brokers to be up. If they are not, print the reason and exit with 1.",
    ),
    "stop": ("awaiting:stop", "Stop a broker that `dev --detach` started, and wait until it has ended."),
    "produce": ("produce:produce", "Send lines of a file or of standard input, one record each."),
    "consume": (
        "consume:consume",
        "Print stored records from a starting point (--from-beginning, --tail, --offset, --time), or new records.",
    ),
    "status": (
        "status:status",
        "Show the cluster on one screen: nodes, controller, under-replicated partitions, disks, groups with lag.",
    ),
    "cluster": ("cluster:app", "Show the cluster's id, controller, voters, features and partitions."),
    "brokers": ("status:brokers_app", "List the brokers of the cluster, or unregister one."),
    "topics": ("topics:app", "Create, list, describe, delete, alter and trim topics."),
    "groups": ("groups:app", "List, describe, reset and delete groups."),
    "configs": ("configs:app", "Show and change settings of topics, brokers and groups."),
    "features": ("features:app", "List and set the levels of the cluster's features."),
    "quotas": ("quotas:app", "List, set and remove the quotas of clients."),
    "users": ("users:app", "List, add and remove the users who log in with SCRAM."),
    "acls": ("acls:app", "List, add and remove access control lists (ACLs)."),
    "scheduled": ("scheduled:app", "List, show and cancel records that will be delivered later."),
    "dlq": ("dlq:app", "List and show the dead letters of a topic, and send them home."),
    "transactions": ("transactions:app", "List, describe and abort transactions."),
    "reassign": ("reassign:app", "Move replicas to other brokers."),
    "storage": ("storage:app", "Format, describe, check and repair the data directories of a stopped broker."),
    "requests": (
        "requests:app",
        "Show and replay the requests of clients that a test has recorded (`Recording.save`).",
    ),
    "certs": ("certs:app", "Make certificates for listeners with TLS."),
    "archive": (
        "archive:app",
        "Copy topics to Parquet files with Spark, verify the copy, write it back. `archive TOPIC... --to URI` copies.",
    ),
    "completion": ("completion:completion", "Print the completion script of a shell."),
    "api": ("api_table:api", "Print the APIs that are served, and their versions."),
    "version": ("api_table:version", "Print the version and the build that runs: compiled or interpreted."),
}
"""For each command, `module:attribute` within this package, and the first paragraph of the command's help."""


class Commands(MutableMapping[str, Any]):
    """The commands as typer needs them, each created on first use."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self.summaries = {name: summary for name, (_, summary) in COMMANDS.items()}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            module, _, attribute = COMMANDS[name][0].partition(":")
            self._made[name] = _built(name, getattr(import_module(f"kpybroker.cli.{module}"), attribute))
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _built(name: str, declared: Any) -> Any:
    """Turn a function into a Command, and a typer app into a CommandGroup."""
    if isinstance(declared, typer.Typer):
        for info in declared.registered_commands:
            info.cls = Command
        return typer.main.get_group(declared)
    single = typer.Typer(add_completion=False)
    single.command(name, cls=Command, context_settings=getattr(declared, "context_settings", None))(declared)
    return typer.main.get_command(single)


class Program(CommandGroup):
    """`kpybroker` itself."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = Commands()
