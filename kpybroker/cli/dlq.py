"""`kpybroker dlq`: list and show the dead letters of a topic, and send them home."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from kpybroker.cli import options
from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.json_lines import json_fields
from kpybroker.cli.letters import Letter, LetterReader, originals_of
from kpybroker.cli.paging import first_of, parse_place, progress
from kpybroker.cli.redriving import Counts, Redriver
from kpybroker.cli.show import remark, show_json, show_line, show_table
from kpybroker.cli.times import when
from kpybroker.client.client import Client, CommandFailed
from kpybroker.errors import ConfigError

SHOWN = 100
app = typer.Typer(
    name="dlq",
    cls=CommandGroup,
    help="List and show the dead letters of a topic, and send them home.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The dead letter topic.")]


@app.command("list")
def list_(
    name: Name,
    where: options.Where = None,
    most: Annotated[
        int, typer.Option("--max", metavar="N", min=1, max=10_000, help="Show at most N (default: 100).")
    ] = SHOWN,
    again: Annotated[bool, options.flag("--all", "Include dead letters that were redriven.")] = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """List the dead letters of a topic that were not redriven: where they come from, and why they are here."""
    matches = _matching(where)

    async def show(client: Client) -> None:
        reader = await LetterReader.open(client, name, again=again)

        def is_wanted(letter: Letter) -> bool:
            return (again or not reader.was_redriven(letter)) and matches(letter)

        found = await first_of(reader.pages(), is_wanted, most)
        if as_json:
            show_json([_as_json(letter, is_redriven=reader.was_redriven(letter)) for letter in found[:most]])
        elif found:
            _show_letters(found[:most])
        else:
            told = "no dead letters" if again else "no dead letters that were not redriven"
            remark(told if where is None else f"{told} and match")
        if len(found) > most:
            remark(f"only the first {most}; there are more")

    options.run(show)


def _matching(where: str | None) -> Callable[[Letter], bool]:
    matches = options.filter_of(where)
    return lambda letter: matches is None or matches(letter.record)


def _show_letters(found: list[Letter]) -> None:
    rows = [
        (
            letter.name,
            letter.topic or None,
            letter.origin,
            letter.offset,
            letter.group or None,
            letter.attempts,
            when(letter.record.timestamp),
            f"cannot be sent home: {letter.fault}" if letter.fault else letter.error,
        )
        for letter in found
    ]
    show_table(("LETTER", "TOPIC", "PARTITION", "OFFSET", "GROUP", "ATTEMPTS", "WRITTEN", "ERROR"), rows, folds=7)


def _as_json(letter: Letter, *, is_redriven: bool) -> dict[str, Any]:
    return {
        "partition": letter.partition,
        **json_fields(letter.record),
        "origin": {"topic": letter.topic or None, "partition": letter.origin, "offset": letter.offset},
        "group": letter.group or None,
        "attempts": letter.attempts,
        "error": letter.error or None,
        "fault": letter.fault or None,
        "redriven": is_redriven,
    }


@app.command("show")
def show(
    name: Name,
    letter: Annotated[
        str, typer.Argument(metavar="LETTER", help="The dead letter: PARTITION:OFFSET, as `dlq list` shows it.")
    ],
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
) -> None:
    """Print one dead letter as JSON. If it has no copy of the original record, that is shown, too."""
    place = parse_place(letter)

    async def look(client: Client) -> None:
        reader = await LetterReader.open(client, name, only=place)
        found = await first_of(reader.pages(), lambda _: True, 0)
        if not found:
            raise CommandFailed(f"{name} has no record {letter}")
        shown = _as_json(found[0], is_redriven=reader.was_redriven(found[0]))
        if not found[0].is_copy:
            (original,) = (await originals_of(client, found)).values() or (None,)
            shown["original"] = None if original is None else json_fields(original)
        show_json(shown)

    options.run(look)


@app.command("redrive")
def redrive(
    name: Name,
    where: options.Where = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="Send all to this topic, instead of each to its own.")
    ] = None,
    most: Annotated[int | None, typer.Option("--max", metavar="N", min=1, help="Send at most N.")] = None,
    execute: options.Execute = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Send dead letters home, to the topics of the original records, where all groups read them again.

    Each is sent once: dead letters that were redriven before are skipped. Without --execute, only the plan is shown.
    """
    if to == name:
        raise ConfigError(f"--to {to} is the dead letter topic itself; omit --to to send each letter home")
    matches = _matching(where)

    async def move(client: Client) -> None:
        redriver = Redriver(client, name, matches, to=to, most=most, executes=execute)
        with progress("redriven" if execute else "read") as tell:
            stopped = await redriver.run(tell)
        _show_counts(redriver.counts, executed=execute, as_json=as_json)
        if stopped:
            raise CommandFailed(stopped)

    options.run(move)


def _show_counts(done: Counts, *, executed: bool, as_json: bool) -> None:
    counts = {"sent": done.sent, "repeated": done.repeated, "gone": done.gone}
    topics = sorted({topic for count in counts.values() for topic in count})
    if as_json:
        rows = [{"topic": topic, **{name: count[topic] for name, count in counts.items()}} for topic in topics]
        show_json({"executed": executed, "topics": rows, "skipped": dict(sorted(done.skipped.items()))})
        return
    if topics:
        show_table(
            ("TOPIC", "SENT", "REPEATED", "GONE"), [(topic, *(c[topic] for c in counts.values())) for topic in topics]
        )
    else:
        show_line("no dead letters to redrive")
    for fault, count in sorted(done.skipped.items()):
        remark(f"{count} skipped: {fault}; --to TOPIC sends such letters")
    if topics and not executed:
        remark(options.ONLY_A_PLAN)
