"""`kpybroker configs`: the settings of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from kpybroker.cli import options
from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.show import remark, show_json, show_line, show_table
from kpybroker.client.client import Client, CommandFailed, check
from kpybroker.config.properties import shown_name
from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ConfigError
from kpybroker.wire.rpc import describe_configs, incremental_alter_configs

TOPIC, BROKER, GROUP = ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP
SET, DELETE = 0, 1
SOURCES = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "properties file",
    5: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}
"""Names of ConfigSource values."""
OWN: Mapping[int, set[int]] = {TOPIC: {1}, BROKER: {2, 3, 4}, GROUP: {8}}
"""Sources that are shown without --all. For topics, the settings of brokers are not shown."""

app = typer.Typer(
    name="configs",
    cls=CommandGroup,
    help="Show and change settings of topics, brokers and groups.",
    no_args_is_help=True,
)
OfTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Settings of this topic.")]
OfBroker = Annotated[int | None, typer.Option("--broker", metavar="ID", min=0, help="Settings of this broker alone.")]
OfAll = Annotated[
    bool, options.flag("--all-brokers", "Defaults of the cluster, for brokers without a value of their own.")
]
OfGroup = Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Settings of this group.")]


class Resource(NamedTuple):
    """A topic, broker or group. An empty name with kind BROKER means all brokers."""

    kind: int
    name: str

    @property
    def node(self) -> int | None:
        """The broker that the request must be sent to, or None if any broker will do."""
        return int(self.name) if self.kind == BROKER and self.name else None

    def __str__(self) -> str:
        if self.kind == BROKER:
            return f"broker {self.name}" if self.name else "all brokers"
        return f"{'topic' if self.kind == TOPIC else 'group'} {self.name}"


def chosen(topic: str | None, broker: int | None, all_brokers: bool, group: str | None) -> Resource:
    """The one resource that the options name. Raises ConfigError."""
    found = [Resource(TOPIC, topic)] if topic is not None else []
    found += [Resource(BROKER, str(broker))] if broker is not None else []
    found += [Resource(BROKER, "")] if all_brokers else []
    found += [Resource(GROUP, group)] if group is not None else []
    if len(found) != 1:
        raise ConfigError("give exactly one of --topic NAME, --broker ID, --all-brokers and --group NAME")
    return found[0]


@app.command()
def get(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Only these settings (default: all that have been set).")
    ] = None,
    all_settings: Annotated[bool, options.flag("--all", "Also show settings that have their default value.")] = False,
    topic: OfTopic = None,
    broker: OfBroker = None,
    all_brokers: OfAll = False,
    group: OfGroup = None,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Show settings and where their values come from."""
    resource = chosen(topic, broker, all_brokers, group)

    async def show(client: Client) -> None:
        await _must_exist(client, resource)
        rows = await described(client, resource, names or None)
        missing = sorted(set(names or []) - {row.name for row in rows})
        if missing:
            raise CommandFailed(f"{resource} has no setting {missing[0]}; `kpybroker configs get --all` lists all")
        if not names and not all_settings:
            rows = [row for row in rows if row.config_source in OWN[resource.kind]]
        facts = [(row.name, _value(row), SOURCES.get(row.config_source, "unknown")) for row in rows]
        if as_json:
            show_json([dict(zip(("name", "value", "source"), row, strict=True)) for row in facts])
        elif facts:
            show_table(("NAME", "VALUE", "FROM"), facts, folds=1)
        else:
            remark(f"nothing is set for {resource}; --all shows the defaults")

    options.run(show)


def _value(row: describe_configs.DescribeConfigsResourceResult) -> str | None:
    return "(hidden)" if row.is_sensitive else row.value


@app.command("set")
def set_(
    settings: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE", help="Settings by Kafka's names: retention.ms=60000.")
    ],
    topic: OfTopic = None,
    broker: OfBroker = None,
    all_brokers: OfAll = False,
    group: OfGroup = None,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Change settings. Brokers apply them at once."""
    changes = [
        incremental_alter_configs.AlterableConfig(name=name, config_operation=SET, value=value)
        for name, value in (options.parse_pair(text, "setting") for text in _only_settings(settings))
    ]
    _run_change(chosen(topic, broker, all_brokers, group), changes, as_json=as_json)


def _only_settings(texts: list[str]) -> list[str]:
    """Refuse arguments without `=`, such as a topic's name. Raises ConfigError."""
    for text in texts:
        if "=" not in text:
            raise ConfigError(
                f"{shown_name(text)} is not NAME=VALUE; a topic is named with --topic: "
                "`kpybroker configs set --topic TOPIC NAME=VALUE`"
            )
    return texts


@app.command()
def unset(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Settings by Kafka's names.")],
    topic: OfTopic = None,
    broker: OfBroker = None,
    all_brokers: OfAll = False,
    group: OfGroup = None,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Remove settings, so that their defaults apply again."""
    changes = [
        incremental_alter_configs.AlterableConfig(name=name, config_operation=DELETE, value=None) for name in names
    ]
    _run_change(chosen(topic, broker, all_brokers, group), changes, as_json=as_json)


def _run_change(
    resource: Resource, changes: Sequence[incremental_alter_configs.AlterableConfig], *, as_json: bool
) -> None:
    async def change(client: Client) -> None:
        await _must_exist(client, resource)
        await alter(client, resource, changes)
        names = [each.name for each in changes]
        if as_json:
            show_json({"resource": str(resource), "changed": names})
        else:
            show_line(f"changed {', '.join(names)} of {resource}")

    options.run(change)


async def _must_exist(client: Client, resource: Resource) -> None:
    """Raises CommandFailed if the resource does not exist."""
    if resource.kind == TOPIC:
        await client.existing([resource.name])
    else:
        await client.metadata([])
        if resource.node is not None and resource.node not in client.brokers:
            there = ", ".join(map(str, sorted(client.brokers)))
            raise CommandFailed(f"there is no broker {resource.node} now; the brokers are {there}")


async def described(client: Client, resource: Resource, names: Sequence[str] | None) -> list[Any]:
    """Settings in order of their names; all if `names` is None. Raises KafkaError."""
    asked = describe_configs.DescribeConfigsResource(
        resource_type=resource.kind,
        resource_name=resource.name,
        configuration_keys=None if names is None else list(names),
    )
    response = await client.ask("DescribeConfigs", describe_configs.Request(resources=[asked]), node=resource.node)
    for row in response.results:
        check(row.error_code, row.error_message)
    return sorted((setting for row in response.results for setting in row.configs), key=lambda setting: setting.name)


async def alter(
    client: Client, resource: Resource, changes: Sequence[incremental_alter_configs.AlterableConfig]
) -> None:
    """Apply all changes or none. Raises KafkaError."""
    asked = incremental_alter_configs.AlterConfigsResource(
        resource_type=resource.kind, resource_name=resource.name, configs=list(changes)
    )

    async def attempt() -> None:
        request = incremental_alter_configs.Request(resources=[asked])
        for row in (await client.ask("IncrementalAlterConfigs", request, node=resource.node)).responses:
            check(row.error_code, row.error_message)

    await client.patiently(attempt)
