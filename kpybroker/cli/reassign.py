"""`kpybroker reassign`: move replicas to other brokers (KIP-455), with a plan, a throttle and progress."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import typer

from kpybroker.cli import cluster_facts, options
from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.configs import BROKER, DELETE, OWN, SET, TOPIC, Resource, alter, described
from kpybroker.cli.placement import place
from kpybroker.cli.show import remark, show_json, show_line, show_table
from kpybroker.client.client import Client, CommandFailed, check
from kpybroker.config.partition_keys import IN_USE
from kpybroker.config.view_keys import VIEW_OF
from kpybroker.errors import ConfigError, ErrorCode, KafkaError
from kpybroker.metadata.retirements import retired_name, topic_of_retired
from kpybroker.topics import TopicPartition, delivery_log_of
from kpybroker.wire.rpc import alter_partition_reassignments, list_partition_reassignments
from kpybroker.wire.rpc.incremental_alter_configs import AlterableConfig
from kpybroker.wire.rpc.metadata import MetadataResponseTopic

LOOK_EVERY_S = 0.5
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
ROWS_SHOWN = 100

app = typer.Typer(name="reassign", cls=CommandGroup, help="Move replicas to other brokers.", no_args_is_help=True)
WaitFor = Annotated[bool, options.flag("--wait", "Show progress until the moves are complete.")]


class PlannedMove(NamedTuple):
    """A planned or ongoing reassignment of one partition."""

    topic: str
    partition: int
    old: tuple[int, ...]
    new: tuple[int, ...]


@app.command()
def start(
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="One or more names.")] = None,
    brokers: Annotated[
        str,
        typer.Option("--brokers", metavar="ID,ID...", help="The brokers over which all replicas are spread."),
    ] = "",
    all_topics: Annotated[bool, options.flag("--all-topics", "All topics, including internal ones.")] = False,
    replication: Annotated[
        int | None,
        typer.Option("--replication", metavar="N", min=1, max=1000, help="Replication factor (default: unchanged)."),
    ] = None,
    throttle: Annotated[
        int | None,
        typer.Option(
            "--throttle",
            metavar="BYTES",
            min=1,
            help="Limit in bytes per second for each broker, until the moves are complete.",
        ),
    ] = None,
    execute: options.Execute = False,
    wait_for: WaitFor = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Spread topics over brokers, with as few moves as possible. Without --execute only the plan is shown."""
    if bool(topics) == all_topics:
        raise ConfigError("give the names of topics, or --all-topics")
    wanted = _broker_ids(brokers)

    async def move(client: Client) -> None:
        moves = await _plan(client, topics or [], wanted, replication)
        if execute and moves:
            await _begin(client, moves, throttle)
        _show_moves(moves, executed=execute, as_json=as_json)
        if execute and wait_for:
            await _wait(client, as_json=as_json)
        elif execute and throttle is not None:
            remark("the throttle stays until `kpybroker reassign wait` removes it")

    options.run(move)


async def _begin(client: Client, moves: list[PlannedMove], throttle: int | None) -> None:
    if throttle is not None:
        await _throttle(client, moves, throttle)
    try:
        await _change(client, {(each.topic, each.partition): list(each.new) for each in moves})
    except KafkaError:
        if throttle is not None and not await _ongoing(client):
            await _remove_throttles(client)
        raise


def _broker_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise ConfigError(f"--brokers {text!r}: write the ids of brokers, such as 1,2,3")
    return sorted({int(part) for part in parts})


async def _plan(client: Client, topics: list[str], brokers: list[int], replication: int | None) -> list[PlannedMove]:
    """The moves that spread the topics evenly. Raises CommandFailed, KafkaError."""
    nodes = {node.node_id: node for node in await cluster_facts.nodes(client)}
    for broker in brokers:
        if broker not in nodes or nodes[broker].is_fenced:
            there = ", ".join(str(node.node_id) for node in nodes.values() if not node.is_fenced)
            raise CommandFailed(f"broker {broker} is not up; the brokers that are up are {there}")
    found = await (_named(client, topics) if topics else client.metadata())
    if not topics:  # a view has the replicas of its source
        views = await cluster_facts.topics_with(client, list(found), VIEW_OF)
        found = {name: topic for name, topic in found.items() if name not in views}
    moves: list[PlannedMove] = []
    for name, current in sorted((await _replicas_of(client, found)).items()):
        try:
            new = place(current, brokers, replication, {broker: nodes[broker].rack for broker in brokers})
        except ValueError as error:
            raise CommandFailed(
                f"topic {name}: {error}; list more brokers in --brokers, or lower --replication"
            ) from None
        moves += [
            PlannedMove(name, at, tuple(current[at]), tuple(new[at])) for at in sorted(new) if new[at] != current[at]
        ]
    return moves


async def _replicas_of(client: Client, found: Mapping[str, MetadataResponseTopic]) -> dict[str, dict[int, list[int]]]:
    """The replicas of each partition by topic. Retired partitions have the number that they have in their topic, for
    which throttles are set. Raises CommandFailed, KafkaError."""
    replicas = {
        name: {row.partition_index: row.replica_nodes for row in topic.partitions} for name, topic in found.items()
    }
    named = {name: topic_of_retired(name) or name for name in found}
    resized = await cluster_facts.topics_with(client, sorted({*found, *named.values()}), IN_USE)
    shown = await client.metadata(each for name in resized for each in (name, retired_name(name))) if resized else {}
    for name in resized:
        retired = shown[retired_name(name)].partitions
        total = len(shown[name].partitions) + len(retired)
        replicas.pop(retired_name(name), None)
        replicas.setdefault(name, {}).update({total - 1 - row.partition_index: row.replica_nodes for row in retired})
    return replicas


async def _named(client: Client, topics: list[str]) -> dict[str, MetadataResponseTopic]:
    """The topics, and the delivery logs of those that have scheduled records. Raises CommandFailed, KafkaError."""
    found = await client.existing(topics)
    logs = await client.metadata(delivery_log_of(name) for name in topics)
    return found | {name: log for name, log in logs.items() if log.partitions}


def _show_moves(moves: list[PlannedMove], *, executed: bool, as_json: bool) -> None:
    if as_json:
        show_json({"executed": executed, "moves": [move._asdict() for move in moves]})
        return
    if not moves:
        remark("all replicas are already in place")
        return
    rows = [(move.topic, move.partition, _listed(move.old), _listed(move.new)) for move in moves]
    show_table(("TOPIC", "PARTITION", "REPLICAS", "NEW REPLICAS"), rows[:ROWS_SHOWN])
    if len(rows) > ROWS_SHOWN:
        show_line(f"... and {len(rows) - ROWS_SHOWN:,} more")
    if not executed:
        remark(options.ONLY_A_PLAN)


def _listed(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))


@app.command("list")
def list_(bootstrap: options.Bootstrap = None, timeout: options.Timeout = None, as_json: options.Json = False) -> None:
    """List the partitions that are being moved."""

    async def show(client: Client) -> None:
        moves = await _ongoing(client)
        if as_json:
            show_json([move._asdict() for move in moves])
        elif moves:
            rows = [(move.topic, move.partition, _listed(move.old), _listed(move.new)) for move in moves]
            show_table(("TOPIC", "PARTITION", "REPLICAS", "NEW REPLICAS"), rows)
        else:
            remark("nothing is being moved")

    options.run(show)


@app.command()
def wait(bootstrap: options.Bootstrap = None, timeout: options.Timeout = None, as_json: options.Json = False) -> None:
    """Show progress until all moves are complete, then remove the throttles."""

    async def watch(client: Client) -> None:
        await _wait(client, as_json=as_json)

    options.run(watch)


@app.command()
def cancel(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Only these topics (default: all that are being moved).")
    ] = None,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Cancel moves in progress: the partitions keep their old replicas."""

    async def end(client: Client) -> None:
        if topics:
            await client.existing(topics)
        moves = [move for move in await _ongoing(client) if not topics or move.topic in topics]
        if moves:
            await _change(client, {(move.topic, move.partition): None for move in moves})
        if not await _ongoing(client):
            await _remove_throttles(client)
        if as_json:
            show_json([{"topic": move.topic, "partition": move.partition} for move in moves])
        else:
            show_line(f"cancelled {len(moves)} move{'' if len(moves) == 1 else 's'}")

    options.run(end)


async def _change(client: Client, wanted: Mapping[TopicPartition, list[int] | None]) -> None:
    """Start reassignments, or cancel those of partitions with None. Raises KafkaError."""
    topics: dict[str, list[alter_partition_reassignments.ReassignablePartition]] = {}
    for (name, index), replicas in wanted.items():
        row = alter_partition_reassignments.ReassignablePartition(partition_index=index, replicas=replicas)
        topics.setdefault(name, []).append(row)
    request = alter_partition_reassignments.Request(
        timeout_ms=client.timeout_ms,
        topics=[
            alter_partition_reassignments.ReassignableTopic(name=name, partitions=rows) for name, rows in topics.items()
        ],
    )

    async def attempt() -> None:
        response = await client.ask("AlterPartitionReassignments", request)
        check(response.error_code, response.error_message)
        for topic in response.responses:
            for row in topic.partitions:
                if row.error_code != ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:  # the move has just been completed
                    check(row.error_code, row.error_message or f"{topic.name}-{row.partition_index}")

    await client.patiently(attempt)


async def _ongoing(client: Client) -> list[PlannedMove]:
    async def attempt() -> list[PlannedMove]:
        request = list_partition_reassignments.Request(timeout_ms=client.timeout_ms, topics=None)
        response = await client.ask("ListPartitionReassignments", request)
        check(response.error_code, response.error_message)
        moves = []
        for topic in response.topics:
            for row in topic.partitions:
                old = tuple(each for each in row.replicas if each not in row.adding_replicas)
                new = tuple(each for each in row.replicas if each not in row.removing_replicas)
                moves.append(PlannedMove(topic.name, row.partition_index, old, new))
        return sorted(moves)

    return await client.patiently(attempt)


async def _wait(client: Client, *, as_json: bool) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        total = 0
        bar = progress.add_task("moving partitions", total=None)
        while moves := await _ongoing(client):
            total = max(total, len(moves))
            progress.update(bar, total=total, completed=total - len(moves))
            await asyncio.sleep(LOOK_EVERY_S)
    await _remove_throttles(client)
    if as_json:
        show_json({"moving": 0})
    else:
        remark("nothing is being moved any more")


async def _throttle(client: Client, moves: list[PlannedMove], rate: int) -> None:
    """Set the replication throttles of these moves: rates on brokers, throttled replicas on topics (KIP-73)."""
    await client.metadata([])
    for broker in sorted(client.brokers):
        changes = [AlterableConfig(name=name, config_operation=SET, value=str(rate)) for name in RATES]
        await alter(client, Resource(BROKER, str(broker)), changes)
    for topic in sorted({move.topic for move in moves}):
        mine = [move for move in moves if move.topic == topic]
        sides = (
            ",".join(f"{move.partition}:{broker}" for move in mine for broker in move.old),
            ",".join(f"{move.partition}:{broker}" for move in mine for broker in move.new if broker not in move.old),
        )
        changes = [
            AlterableConfig(name=name, config_operation=SET, value=value)
            for name, value in zip(THROTTLED, sides, strict=True)
        ]
        await alter(client, Resource(TOPIC, topic), changes)


async def _remove_throttles(client: Client) -> None:
    """Remove the throttles of all brokers and topics that have any, as `kafka-reassign-partitions --verify` does."""
    topics = await client.metadata()
    resources = [Resource(BROKER, str(broker)) for broker in sorted(client.brokers)]
    for resource in [*resources, *(Resource(TOPIC, name) for name in sorted(topics))]:
        names = RATES if resource.kind == BROKER else THROTTLED
        rows = await described(client, resource, names)
        given = [row.name for row in rows if row.config_source in OWN[resource.kind] and row.value]
        if given:
            changes = [AlterableConfig(name=name, config_operation=DELETE, value=None) for name in given]
            await alter(client, resource, changes)
