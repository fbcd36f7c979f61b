"""`kpybroker acls`: list, add and remove access control entries (KIP-11, KIP-290).

`produce` and `consume` stand for the operations that `kafka-acls --producer` and `--consumer` add.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from kpybroker.cli import options
from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.show import remark, show_json, show_line, show_table
from kpybroker.client.client import Client, CommandFailed, check
from kpybroker.errors import ConfigError
from kpybroker.security.acls import ANY, MATCH, WILDCARD, Acl, AclFilter, PatternType, Permission
from kpybroker.security.authorizer import CLUSTER_NAME, AclResource, Operation
from kpybroker.security.standard_authorizer import java_host
from kpybroker.similar_names import nearest_name
from kpybroker.wire.rpc import create_acls, delete_acls, describe_acls

SHORTHANDS = {
    "produce": {
        AclResource.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
        AclResource.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    },
    "consume": {
        AclResource.TOPIC: (Operation.READ, Operation.DESCRIBE),
        AclResource.GROUP: (Operation.READ,),
    },
}
"""The operations that each word stands for, by resource type."""
OPERATIONS = {operation.name.lower().replace("_", "-"): operation for operation in Operation}
COLUMNS = ("PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "PATTERN", "HOST")

app = typer.Typer(
    name="acls", cls=CommandGroup, help="List, add and remove access control lists (ACLs).", no_args_is_help=True
)
Who = Annotated[str, typer.Argument(metavar="USER", help="A user's name, or a principal such as User:ann.")]
What = Annotated[
    str,
    typer.Argument(
        metavar="OPERATION[,OPERATION...]",
        help="produce, consume, or Kafka's operations: read, write, create, delete, alter, describe, all, ...",
    ),
]
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic; * is any. Repeatable.")]
Groups = Annotated[list[str] | None, typer.Option("--group", metavar="NAME", help="A consumer group. Repeatable.")]
Transactions = Annotated[
    list[str] | None, typer.Option("--transactional-id", metavar="ID", help="A transactional id. Repeatable.")
]
Users = Annotated[
    list[str] | None,
    typer.Option("--user", metavar="NAME", help="A user, for operations on the user's delegation tokens. Repeatable."),
]
Cluster = Annotated[bool, options.flag("--cluster", "The cluster itself.")]
Prefixed = Annotated[bool, options.flag("--prefixed", "Treat the names as prefixes.")]
Host = Annotated[
    str | None,
    typer.Option("--host", metavar="ADDRESS", help="Only for clients at this IP address (default: any address)."),
]


class Resource(NamedTuple):
    """The resource of an ACL."""

    type: AclResource
    name: str
    pattern: PatternType


@app.command("list")
def list_(
    principal: Annotated[
        str | None, typer.Option("--principal", metavar="USER", help="Only ACLs of this user.")
    ] = None,
    topics: Topics = None,
    groups: Groups = None,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """List all ACLs, or those of a user, of topics and of groups (including ACLs for prefixes of their names)."""
    whose = None if principal is None else _principal(principal)
    named: list[tuple[AclResource | None, str | None]] = [
        *((AclResource.TOPIC, name) for name in topics or []),
        *((AclResource.GROUP, name) for name in groups or []),
    ]

    async def show(client: Client) -> None:
        found: set[Acl] = set()
        for kind, name in named or [(None, None)]:
            found.update(await _described(client, whose, kind, name))
        rows = sorted(found)
        if as_json:
            show_json([_facts(acl) for acl in rows])
        elif rows:
            show_table(COLUMNS, [tuple(_facts(acl).values()) for acl in rows])
        else:
            remark("no ACLs; add one with `kpybroker acls allow`")

    options.run(show)


@app.command()
def allow(
    who: Who,
    what: What,
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: Transactions = None,
    users: Users = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    host: Host = None,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Allow operations: `kpybroker acls allow ann produce --topic orders`."""
    resources = _resources(topics, groups, transactional_ids, users, cluster=cluster, prefixed=prefixed)
    _create(_acls(who, what, resources, host, Permission.ALLOW), as_json=as_json)


@app.command()
def deny(
    who: Who,
    what: What,
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: Transactions = None,
    users: Users = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    host: Host = None,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Deny operations, even if other ACLs allow them: `kpybroker acls deny '*' delete --topic orders`."""
    resources = _resources(topics, groups, transactional_ids, users, cluster=cluster, prefixed=prefixed)
    _create(_acls(who, what, resources, host, Permission.DENY), as_json=as_json)


@app.command()
def remove(
    who: Who,
    what: Annotated[
        str | None, typer.Argument(metavar="[OPERATION[,OPERATION...]]", help="Only these operations (default: all).")
    ] = None,
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: Transactions = None,
    users: Users = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Remove and print a user's ACLs, whether they allow or deny: all, or those for some operations and resources."""
    given = topics or groups or transactional_ids or users or cluster
    resources: Sequence[Resource | None] = [None]
    if given:
        resources = _resources(topics, groups, transactional_ids, users, cluster=cluster, prefixed=prefixed)
    filters = [
        AclFilter(
            ANY if resource is None else resource.type,
            None if resource is None else resource.name,
            ANY if resource is None else resource.pattern,
            _principal(who),
            operation=operation,
        )
        for resource in resources
        for operation in _operations(what, resource)
    ]
    rows = [
        delete_acls.DeleteAclsFilter(
            resource_type_filter=each.resource_type,
            resource_name_filter=each.resource_name,
            pattern_type_filter=each.pattern_type,
            principal_filter=each.principal,
            host_filter=each.host,
            operation=each.operation,
            permission_type=each.permission,
        )
        for each in filters
    ]

    async def change(client: Client) -> None:
        removed: set[Acl] = set()

        async def attempt() -> None:
            response = await client.ask("DeleteAcls", delete_acls.Request(filters=rows))
            for result in response.filter_results:
                check(result.error_code, result.error_message)
                removed.update(_acl(each) for each in result.matching_acls)

        await client.patiently(attempt)
        if not removed:
            raise CommandFailed(f"{_principal(who)} has no such ACL; `kpybroker acls list` lists all")
        _show_changed("removed", sorted(removed), as_json=as_json)

    options.run(change)


def _resources(
    topics: list[str] | None,
    groups: list[str] | None,
    transactional_ids: list[str] | None,
    users: list[str] | None,
    *,
    cluster: bool,
    prefixed: bool,
) -> list[Resource]:
    """The resources that the options name. Raises ConfigError."""
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    named = {
        AclResource.TOPIC: topics,
        AclResource.GROUP: groups,
        AclResource.TRANSACTIONAL_ID: transactional_ids,
        AclResource.USER: [_principal(name) for name in users or []],
    }
    found = [Resource(kind, name, pattern) for kind, names in named.items() for name in names or []]
    if cluster:
        found.append(Resource(AclResource.CLUSTER, CLUSTER_NAME, PatternType.LITERAL))
    if not found:
        raise ConfigError("no resource given; use --topic, --group, --transactional-id, --user or --cluster")
    if prefixed and any(each.name == WILDCARD for each in found):
        raise ConfigError("with --prefixed, * is a literal prefix; omit --prefixed to match all names")
    return found


def _acls(who: str, what: str, resources: Sequence[Resource], host: str | None, permission: Permission) -> list[Acl]:
    """The ACLs to add. Raises ConfigError if an operation applies to none of the resources."""
    kinds = [each.type for each in resources]
    where = WILDCARD if host is None else _address(host)
    for word in _words(what):
        on = SHORTHANDS.get(word)
        if on is not None and not any(kind in on for kind in kinds):
            options_of = " and ".join(f"--{_word(kind)}" for kind in on)
            raise ConfigError(f"{word} does not apply to these resources; give {options_of}")
    found = (
        Acl(each.type, each.name, each.pattern, _principal(who), where, operation, permission)
        for each in resources
        for operation in _operations(what, each)
    )
    return list(dict.fromkeys(found))


def _operations(what: str | None, resource: Resource | None) -> Iterator[int]:
    """The operations on a resource that the words stand for. Raises ConfigError."""
    if what is None:
        yield ANY
        return
    for word in _words(what):
        if word not in SHORTHANDS:
            yield OPERATIONS[word]
        elif resource is not None:
            yield from SHORTHANDS[word].get(resource.type, ())
        else:
            raise ConfigError(f"{word} needs a resource; give --topic, --group or --transactional-id")


def _words(what: str) -> list[str]:
    """The operations in a list separated by commas. Raises ConfigError."""
    words = [word.strip().lower().replace("_", "-") for word in what.split(",")]
    for word in words:
        if word not in OPERATIONS and word not in SHORTHANDS:
            known = [*SHORTHANDS, *OPERATIONS]
            near = nearest_name(word, known)
            hint = f"did you mean {near}?" if near is not None else f"the operations are {', '.join(known)}"
            raise ConfigError(f"there is no operation {word}; {hint}")
    return words


def _principal(name: str) -> str:
    """The principal with this name; a name without a type is a user's. Raises ConfigError."""
    if not name or name.startswith(":"):
        raise ConfigError(f"{name!r} is not the name of a user; write a name such as ann, or User:ann")
    return name if ":" in name else f"User:{name}"


def _address(text: str) -> str:
    """An address as Java prints it, because hosts in ACLs are compared in this form. Raises ConfigError."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise ConfigError(f"--host {text}: write one IP address; names and ranges of addresses match nothing") from None
    return java_host(text)


def _create(acls: Sequence[Acl], *, as_json: bool) -> None:
    rows = [
        create_acls.AclCreation(
            resource_type=acl.resource_type,
            resource_name=acl.resource_name,
            resource_pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in acls
    ]

    async def change(client: Client) -> None:
        async def attempt() -> None:
            for result in (await client.ask("CreateAcls", create_acls.Request(creations=rows))).results:
                check(result.error_code, result.error_message)

        await client.patiently(attempt)
        _show_changed("added", acls, as_json=as_json)

    options.run(change)


async def _described(client: Client, whose: str | None, kind: AclResource | None, name: str | None) -> list[Acl]:
    request = describe_acls.Request(
        resource_type_filter=ANY if kind is None else kind,
        resource_name_filter=name,
        pattern_type_filter=ANY if name is None else MATCH,
        principal_filter=whose,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    response = await client.ask("DescribeAcls", request)
    check(response.error_code, response.error_message)
    return [
        Acl(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for resource in response.resources
        for acl in resource.acls
    ]


def _acl(row: Any) -> Acl:
    return Acl(
        row.resource_type,
        row.resource_name,
        row.pattern_type,
        row.principal,
        row.host,
        row.operation,
        row.permission_type,
    )


def _show_changed(verb: str, acls: Sequence[Acl], *, as_json: bool) -> None:
    if as_json:
        show_json([_facts(acl) for acl in acls])
        return
    for acl in acls:
        facts = _facts(acl)
        name = facts["name"] + ("..." if acl.pattern_type == PatternType.PREFIXED else "")
        where = "" if acl.host == WILDCARD else f" from {acl.host}"
        show_line(
            f"{verb}: {facts['permission']} {facts['principal']} to {facts['operation']} "
            f"{facts['resource']} {name}{where}"
        )


def _facts(acl: Acl) -> dict[str, str]:
    """The fields of an ACL in words, in the order of COLUMNS. An unknown code is shown as a number."""
    return {
        "principal": acl.principal,
        "permission": _word_of(Permission, acl.permission),
        "operation": _word_of(Operation, acl.operation),
        "resource": _word_of(AclResource, acl.resource_type),
        "name": acl.resource_name,
        "pattern": _word_of(PatternType, acl.pattern_type),
        "host": acl.host,
    }


def _word_of(kind: type[Permission | Operation | AclResource | PatternType], code: int) -> str:
    return _word(kind(code)) if code in list(kind) else str(code)


def _word(code: Permission | Operation | AclResource | PatternType) -> str:
    return code.name.lower().replace("_", "-")
