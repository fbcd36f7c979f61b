"""`kpybroker quotas`: list, set and remove quotas by user, client id or address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from kpybroker.cli import options
from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.show import remark, show_json, show_line, show_table
from kpybroker.client.client import Client, check
from kpybroker.errors import ConfigError
from kpybroker.similar_names import nearest_name
from kpybroker.wire.rpc import alter_client_quotas, describe_client_quotas

Entity = tuple[tuple[str, str | None], ...]
"""(entity type, name) pairs; the name None is the default entity."""

UNITS = {
    "producer_byte_rate": "bytes per second",
    "consumer_byte_rate": "bytes per second",
    "request_percentage": "percent of the broker's one thread",
    "controller_mutation_rate": "partitions per second",
    "connection_creation_rate": "connections per second",
}
"""All quotas that can be set, and their units."""

app = typer.Typer(
    name="quotas", cls=CommandGroup, help="List, set and remove the quotas of clients.", no_args_is_help=True
)
User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Quotas of this user.")]
DefaultUser = Annotated[bool, options.flag("--default-user", "Quotas of every user without a quota of its own.")]
ClientId = Annotated[str | None, typer.Option("--client", metavar="ID", help="Quotas of this client id.")]
DefaultClient = Annotated[
    bool, options.flag("--default-client", "Quotas of every client id without a quota of its own.")
]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="Quotas of this address.")]
DefaultIp = Annotated[bool, options.flag("--default-ip", "Quotas of every address without a quota of its own.")]


@app.command("list")
def list_(bootstrap: options.Bootstrap = None, timeout: options.Timeout = None, as_json: options.Json = False) -> None:
    """List all quotas."""

    async def show(client: Client) -> None:
        response = await client.ask("DescribeClientQuotas", describe_client_quotas.Request())
        check(response.error_code, response.error_message)
        rows = [
            (tuple((part.entity_type, part.entity_name) for part in entry.entity), value.key, value.value)
            for entry in response.entries or []
            for value in entry.values
        ]
        rows.sort(key=lambda row: (_named(row[0]), row[1]))
        if as_json:
            show_json([{"entity": dict(entity), "quota": quota, "value": value} for entity, quota, value in rows])
        elif rows:
            show_table(
                ("OF", "QUOTA", "VALUE"), [(_named(entity), quota, _shown(value)) for entity, quota, value in rows]
            )
        else:
            remark("no quotas; set one with `kpybroker quotas set`")

    options.run(show)


def _named(entity: Entity) -> str:
    return ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in sorted(entity, reverse=True))


def _shown(value: float) -> str:
    return str(int(value)) if value.is_integer() else str(value)


@app.command("set")
def set_(
    quotas: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE",
            help="producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate or "
            "connection_creation_rate, and a number.",
        ),
    ],
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client: DefaultClient = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Set quotas of a user, of a client id, of both together, or of an address."""
    entity = _entity(("user", user, default_user), ("client-id", client_id, default_client), ("ip", ip, default_ip))
    changes = []
    for text in quotas:
        name, value = options.parse_pair(text, "quota")
        try:
            changes.append(alter_client_quotas.OpData(key=name, value=float(value)))
        except ValueError:
            raise ConfigError(f"{_known(name)}={value}: write a number, {UNITS[name]}, such as {name}=1000") from None
        _known(name)
    _run(entity, changes, as_json=as_json)


@app.command()
def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Quotas, such as producer_byte_rate.")],
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client: DefaultClient = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Remove quotas."""
    entity = _entity(("user", user, default_user), ("client-id", client_id, default_client), ("ip", ip, default_ip))
    _run(entity, [alter_client_quotas.OpData(key=_known(name), remove=True) for name in names], as_json=as_json)


def _known(name: str) -> str:
    """The name of a quota. Raises ConfigError."""
    if name not in UNITS:
        near = nearest_name(name, UNITS)
        hint = f"the quotas are {', '.join(UNITS)}" if near is None else f"did you mean {near}?"
        raise ConfigError(f"there is no quota {name}; {hint}")
    return name


def _entity(*given: tuple[str, str | None, bool]) -> Entity:
    found: list[tuple[str, str | None]] = []
    for kind, name, is_default in given:
        if name is not None and is_default:
            raise ConfigError(f"a name and the default of {kind} cannot be used together; give one of them")
        if name is not None or is_default:
            found.append((kind, name))
    kinds = {kind for kind, _ in found}
    if not found or ("ip" in kinds and len(kinds) > 1):
        raise ConfigError("give --user, --client or both, or --ip, or --default-user, --default-client or --default-ip")
    return tuple(found)


def _run(entity: Entity, changes: Sequence[alter_client_quotas.OpData], *, as_json: bool) -> None:
    async def change(client: Client) -> None:
        parts = [alter_client_quotas.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
        entry = alter_client_quotas.EntryData(entity=parts, ops=list(changes))

        async def attempt() -> None:
            for row in (await client.ask("AlterClientQuotas", alter_client_quotas.Request(entries=[entry]))).entries:
                check(row.error_code, row.error_message)

        await client.patiently(attempt)
        names = [each.key for each in changes]
        if as_json:
            show_json({"entity": dict(entity), "changed": names})
        else:
            show_line(f"changed {', '.join(names)} of {_named(entity)}")

    options.run(change)
