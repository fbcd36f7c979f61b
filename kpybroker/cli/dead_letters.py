"""`kpybroker groups dead-letters` and `redrive`: show the dead letters of a group, and send them back."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any

import typer

from kpybroker.cli import options
from kpybroker.cli.json_lines import json_fields
from kpybroker.cli.letters import Letter, LetterReader, letter_topic
from kpybroker.cli.redriving import Redriven, Redriver
from kpybroker.cli.show import remark, show_json, show_line, show_table
from kpybroker.cli.times import when
from kpybroker.client.client import Client

SHOWN = 100
Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name, a consumer's group.id.")]
Topic = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", help="The dead letter topic (default: the one in the group's settings)."),
]
All = Annotated[bool, options.flag("--all", "Include dead letters that were redriven.")]


def dead_letters(
    name: Name,
    topic: Topic = None,
    again: All = False,
    where: options.Where = None,
    most: Annotated[
        int, typer.Option("--max", metavar="N", min=1, max=10_000, help="Show at most N (default: 100).")
    ] = SHOWN,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Show the dead letters of a group: records that were rejected, or delivered too often."""

    matches = options.filter_of(where)

    async def show(client: Client) -> None:
        reader = await LetterReader.open(client, name, topic or await letter_topic(client, name), again=again)
        found: list[Letter] = []
        async with aclosing(reader.pages()) as pages:
            async for page in pages:
                found += page if matches is None else [letter for letter in page if matches(letter.record)]
                if len(found) > most:
                    break
        shown = found[:most]
        if as_json:
            show_json([_as_json(letter) for letter in shown])
        elif shown:
            show_table(
                ("TOPIC", "PARTITION", "OFFSET", "DELIVERIES", "WRITTEN", "REASON"),
                [(*letter.source, letter.deliveries, when(letter.record.timestamp), letter.reason) for letter in shown],
            )
        else:
            told = "no dead letters" if again else "no dead letters that were not redriven"
            remark(told if matches is None else f"{told} and match")
        if len(found) > most:
            remark(f"only the first {most}; there are more")

    options.run(show)


def _as_json(letter: Letter) -> dict[str, Any]:
    topic, partition, offset = letter.source
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "group": letter.group,
        "deliveries": letter.deliveries,
        "reason": letter.reason,
        "dead_letter": {"partition": letter.partition, **json_fields(letter.record)},
    }


def redrive(
    name: Name,
    topic: Topic = None,
    again: All = False,
    most: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="Stop after the page with the Nth record.")
    ] = None,
    execute: options.Execute = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Send the dead letters of a group back to their topics, where all groups read them again.

    Dead letters that were redriven before are skipped.
    """

    async def move(client: Client) -> None:
        reader = await LetterReader.open(client, name, topic or await letter_topic(client, name), again=again)
        redriver = Redriver(client, name, reader, executes=execute)

        def tell(done: Redriven, left: int) -> None:
            if left and not as_json:
                remark(f"{done.sent.total()} records sent, {left} dead letters left")

        await redriver.run(most, tell)
        _show_redriven(redriver.done, executed=execute, as_json=as_json)

    options.run(move)


def _show_redriven(done: Redriven, *, executed: bool, as_json: bool) -> None:
    counts = {"sent": done.sent, "repeated": done.repeated, "gone": done.gone}
    topics = sorted({topic for count in counts.values() for topic in count})
    if as_json:
        rows = [{"topic": topic, **{name: count[topic] for name, count in counts.items()}} for topic in topics]
        show_json({"executed": executed, "topics": rows})
        return
    if topics:
        show_table(
            ("TOPIC", "SENT", "REPEATED", "GONE"), [(topic, *(c[topic] for c in counts.values())) for topic in topics]
        )
    else:
        show_line("no dead letters to redrive")
    if topics and not executed:
        remark(options.ONLY_A_PLAN)
