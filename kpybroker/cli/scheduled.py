"""`kpybroker scheduled`: list, show and cancel records that will be delivered later."""

from __future__ import annotations

import sys
import time
from contextlib import aclosing
from typing import Annotated, Any

import typer

from kpybroker.cli import options
from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.json_lines import json_fields
from kpybroker.cli.paging import first_of, parse_place, progress
from kpybroker.cli.pending_records import Pending, PendingRecords
from kpybroker.cli.show import remark, show_json, show_table
from kpybroker.cli.times import when
from kpybroker.client.client import Client, CommandFailed
from kpybroker.errors import ConfigError

SHOWN = 100
VALUE_CHARACTERS = 40
SOON_MS = 2000
"""A record that is due sooner cannot be cancelled reliably: it may be on its way."""
app = typer.Typer(
    name="scheduled",
    cls=CommandGroup,
    help="List, show and cancel records that will be delivered later.",
    no_args_is_help=True,
)
NAME_HELP = "The record: PARTITION:OFFSET, as its producer was told and as `scheduled list` shows it."


@app.command("list")
def list_(
    name: options.TopicName,
    where: options.Where = None,
    most: Annotated[
        int, typer.Option("--max", metavar="N", min=1, max=1_000_000, help="Show at most N (default: 100).")
    ] = SHOWN,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """List the pending records of a topic, in the order in which they are due."""
    matches = options.filter_of(where)

    async def show(client: Client) -> None:
        pending = await _opened(client, name)
        found = await first_of(pending.pages(), lambda each: matches is None or matches(each.record), most)
        if as_json:
            show_json([_as_json(each) for each in found[:most]])
        elif found:
            rows = [(each.name, when(each.due_ms), _in(each.due_ms), *_texts(each)) for each in found[:most]]
            show_table(("RECORD", "DUE", "DUE IN", "KEY", "VALUE"), rows)
        else:
            remark("no pending records" if matches is None else "no pending records match")
        if len(found) > most:
            remark(f"only the first {most} of {len(pending)}" if matches is None else f"only the first {most}")

    options.run(show)


@app.command("show")
def show(
    name: options.TopicName,
    record: Annotated[str, typer.Argument(metavar="RECORD", help=NAME_HELP)],
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
) -> None:
    """Print one pending record as JSON, with its time."""
    wanted = [parse_place(record)]

    async def look(client: Client) -> None:
        (found,) = await _find(await _opened(client, name), name, wanted)
        show_json(_as_json(found))

    options.run(look)


@app.command("cancel")
def cancel(
    name: options.TopicName,
    records: Annotated[list[str] | None, typer.Argument(metavar="RECORD...", help=NAME_HELP)] = None,
    where: options.Where = None,
    execute: options.Execute = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Cancel pending records, so that they are never delivered. Without --execute, only the plan is shown."""
    if bool(records) == (where is not None):
        raise ConfigError("name the records to cancel, or give --where EXPRESSION")
    wanted, matches = list(dict.fromkeys(map(parse_place, records or []))), options.filter_of(where)

    async def withdraw(client: Client) -> None:
        pending = await _opened(client, name)
        if matches is None:
            found = await _find(pending, name, wanted)
        else:
            found = await first_of(pending.pages(), lambda each: matches(each.record), sys.maxsize)
        now_ms = _now_ms()
        soon = [each for each in found if each.due_ms <= now_ms + SOON_MS]
        late = [each for each in found if each.due_ms > now_ms + SOON_MS]
        if execute:
            with progress("cancelled") as tell:
                for number, each in enumerate(late, 1):
                    await pending.cancel(each)
                    tell(number, len(late))
        if as_json:
            rows = [{**_as_json(each), "cancelled": execute and each.due_ms > now_ms + SOON_MS} for each in found]
            show_json({"executed": execute, "records": rows})
            return
        if late:
            show_table(
                ("RECORD", "DUE", "KEY", "VALUE"), [(each.name, when(each.due_ms), *_texts(each)) for each in late]
            )
        for each in soon:
            remark(f"{each.name} is due in {_in(each.due_ms)}, which is too soon to cancel it")
        if not found:
            remark("no pending records match")
        elif not execute:
            remark(options.ONLY_A_PLAN)

    options.run(withdraw)


async def _find(pending: PendingRecords, topic: str, wanted: list[tuple[int, int]]) -> list[Pending]:
    """The pending records with these partitions and offsets. Raises CommandFailed if one is not pending."""
    found: dict[tuple[int, int], Pending] = {}
    async with aclosing(pending.pages()) as pages:
        async for page in pages:
            found |= {(each.partition, each.record.offset): each for each in page}
            if all(each in found for each in wanted):
                break
    for partition, offset in wanted:
        if (partition, offset) not in found:
            text = f"{topic} has no pending record {partition}:{offset}: it was delivered, cancelled or never scheduled"
            raise CommandFailed(text)
    return [found[each] for each in wanted]


async def _opened(client: Client, topic: str) -> PendingRecords:
    with progress("read") as tell:
        return await PendingRecords.open(client, topic, tell)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _in(due_ms: int) -> str:
    """The time until a record is due, in its two largest units."""
    left_s, parts = max(due_ms - _now_ms(), 0) // 1000, list[str]()
    for unit, seconds in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left_s = divmod(left_s, seconds)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def _texts(pending: Pending) -> tuple[str, str]:
    """Key and value, shortened."""
    return _short(pending.record.key), _short(pending.record.value)


def _short(data: bytes | None) -> str:
    text = "null" if data is None else data.decode(errors="backslashreplace")
    return text if len(text) <= VALUE_CHARACTERS else text[: VALUE_CHARACTERS - 3] + "..."


def _as_json(pending: Pending) -> dict[str, Any]:
    return {
        "partition": pending.partition,
        **json_fields(pending.record),
        "due": pending.due_ms,
        "accepted": pending.accepted_ms,
    }
