"""`kpybroker groups`: list, describe, reset and delete groups."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import typer

from kpybroker.cli import group_facts, options, resetting
from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.group_lag import Overview, overviews
from kpybroker.cli.show import remark, show_json, show_line, show_table
from kpybroker.cli.times import TIME_HELP, parse_time
from kpybroker.client.client import Client, CommandFailed
from kpybroker.errors import ConfigError

WATCH_S = 2.0
CLEAR_SCREEN = "\x1b[H\x1b[2J"
app = typer.Typer(
    name="groups",
    cls=CommandGroup,
    help="List, describe, reset and delete groups.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name, a consumer's group.id.")]


@app.command("list")
def list_(
    watch: Annotated[bool, options.flag("--watch", "Refresh every two seconds, until Ctrl-C.")] = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """List groups with their states, members and lag."""

    async def show(client: Client) -> None:
        _show_groups(await overviews(client), as_json=as_json)
        while watch:
            await asyncio.sleep(WATCH_S)
            found = await overviews(client)
            if not as_json and sys.stdout.isatty():
                sys.stdout.write(CLEAR_SCREEN)
            _show_groups(found, as_json=as_json)

    try:
        options.run(show, ends_with_reader=watch)
    except KeyboardInterrupt:
        if not watch:
            raise
        # Ctrl-C is the normal way to stop watching


def _show_groups(found: list[Overview], *, as_json: bool) -> None:
    if as_json:
        show_json([row.facts for row in found])
    elif found:
        show_table(
            ("GROUP", "STATE", "TYPE", "PROTOCOL", "MEMBERS", "LAG"), [tuple(row.facts.values()) for row in found]
        )
    else:
        remark("no groups; one appears when its first consumer joins or commits")


@app.command()
def describe(
    name: Name, bootstrap: options.Bootstrap = None, timeout: options.Timeout = None, as_json: options.Json = False
) -> None:
    """Show members, committed offsets and lag of a group."""

    async def show(client: Client) -> None:
        found = await group_facts.must_exist(client, name)
        members = group_facts.members_of(found)
        standings = await group_facts.standings(client, name, members)
        if as_json:
            show_json(_as_json(found.group_id, found.group_state, found.protocol_data, members, standings))
            return
        count = f"{len(members)} member{'' if len(members) == 1 else 's'}"
        lag = sum(row.lag or 0 for row in standings)
        show_line(f"{name}: {found.group_state}, {count}, lag {lag}")
        if not standings:
            return
        columns = ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG")
        rows = [(row.topic, row.partition, row.committed, row.end, row.lag) for row in standings]
        if not members:
            show_table(columns, rows)
            return
        who = [(row.member.client_id, row.member.host) if row.member else (None, None) for row in standings]
        show_table((*columns, "CLIENT", "HOST"), [(*row, *whom) for row, whom in zip(rows, who, strict=True)])

    options.run(show)


def _as_json(
    name: str,
    state: str,
    protocol: str,
    members: list[group_facts.GroupMember],
    standings: list[group_facts.PartitionProgress],
) -> dict[str, Any]:
    return {
        "group": name,
        "state": state,
        "protocol": protocol,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": [{"topic": topic, "partition": partition} for topic, partition in member.partitions],
            }
            for member in members
        ],
        "offsets": [
            {
                "topic": row.topic,
                "partition": row.partition,
                "committed": row.committed,
                "end": row.end,
                "lag": row.lag,
                "member_id": None if row.member is None else row.member.member_id,
            }
            for row in standings
        ],
    }


@app.command()
def reset(
    name: Name,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="TOPIC[:0,1]", help="Reset this topic, or these partitions of it; may be repeated."
        ),
    ] = None,
    all_topics: Annotated[
        bool, options.flag("--all-topics", "Reset all topics for which the group has committed offsets.")
    ] = False,
    to_earliest: Annotated[
        bool, options.flag("--to-earliest", "To the first record, so that everything is read again.")
    ] = False,
    to_latest: Annotated[
        bool, options.flag("--to-latest", "To the end, so that existing records are skipped.")
    ] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="N", min=0, help="To this offset.")] = None,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="TIME", help=f"To the first record of this time or later: {TIME_HELP}."),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="Forward by N records, or back with -N.")
    ] = None,
    execute: options.Execute = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Change a group's committed offsets. Give the topics, and one of --to-... or --shift-by.

    The group must have no members. Without --execute, only the plan is shown.
    """
    options.check_offset("--to-offset", to_offset)
    options.check_offset("--shift-by", shift_by)
    target = resetting.Target(
        to_earliest, to_latest, to_offset, None if to_time is None else parse_time(to_time), shift_by
    )
    if bool(topic) == all_topics:
        raise ConfigError("give --topic NAME, or --all-topics for all topics with committed offsets")
    scopes = [resetting.parse_scope(text) for text in topic or []]

    async def move(client: Client) -> None:
        found = await (group_facts.find(client, name) if scopes else group_facts.must_exist(client, name))
        group_facts.must_be_idle(found)
        offsets = await group_facts.committed(client, name)
        places = await resetting.scope_of(client, scopes, offsets)
        if not places:
            raise CommandFailed(f"group {name} has no committed offsets; name topics with --topic")
        moves = await resetting.plan(client, places, offsets, target)
        if execute:
            await group_facts.commit(client, name, {(move.topic, move.partition): move.new for move in moves})
        _show_moves(moves, executed=execute, as_json=as_json)

    options.run(move)


def _show_moves(moves: list[resetting.PlannedReset], *, executed: bool, as_json: bool) -> None:
    rows = [(move.topic, move.partition, move.old, move.new, move.end - move.new) for move in moves]
    if as_json:
        names = ("topic", "partition", "old", "new", "lag")
        show_json({"executed": executed, "offsets": [dict(zip(names, row, strict=True)) for row in rows]})
        return
    show_table(("TOPIC", "PARTITION", "OLD", "NEW", "LAG"), rows)
    bounded = sum(move.bounded for move in moves)
    if bounded:
        remark(f"{bounded} of {len(moves)} offsets are outside their logs; the nearest ones are used")
    if not executed:
        remark(options.ONLY_A_PLAN)


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP", help="One or more names.")],
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Delete groups without members, and their committed offsets."""

    async def remove(client: Client) -> None:
        for name in names:
            group_facts.must_be_idle(await group_facts.must_exist(client, name))
        for name in names:
            await group_facts.delete(client, name)
            if not as_json:
                show_line(f"deleted {name}")
        if as_json:
            show_json([{"group": name, "deleted": True} for name in names])

    options.run(remove)
