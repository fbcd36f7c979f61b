"""`kpybroker consume`: options and printing; `consuming.py` reads the records."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Annotated, NamedTuple

import typer

from kpybroker.cli import cluster_facts, consuming, group_facts, options, record_format
from kpybroker.cli.show import remark
from kpybroker.cli.times import TIME_HELP, parse_time
from kpybroker.client.client import EARLIEST, LATEST, Client
from kpybroker.errors import ConfigError
from kpybroker.wire.records.batch import Record

Wanted = Callable[[Record], bool]


class _Printer:
    """Prints the records for which `wanted` returns true, at most `count_max` of them."""

    def __init__(
        self, show: record_format.Show, wanted: Callable[[Record], bool] | None, count_max: int | None
    ) -> None:
        self._show = show
        self._wanted = wanted
        self._left = count_max
        self._is_terminal = sys.stdout.isatty()

    def write(self, page: list[tuple[int, Record]]) -> int:
        """Print a page. Returns the number of records that were examined before the maximum was reached."""
        out = sys.stdout.buffer
        lines: list[bytes] = []
        looked_at = 0
        for partition, record in page:
            if self.is_done:
                break
            looked_at += 1
            if self._wanted is not None and not self._wanted(record):
                continue
            line = self._show(partition, record)
            if isinstance(line, str):
                line = line.encode()
            elif self._is_terminal:
                line = _visible(line)
            lines += line, b"\n"
            if self._left is not None:
                self._left -= 1
        out.write(b"".join(lines))
        out.flush()
        return looked_at

    @property
    def is_done(self) -> bool:
        return self._left == 0


class _ReadOptions(NamedTuple):
    """The options that say where to start and when to stop. `offset` and `tail` are None if not given."""

    time_ms: int
    offset: int | None
    tail: int | None
    partition: int | None
    group: str | None
    goes_on: bool


Tail = Annotated[
    int | None,
    typer.Option(
        "--tail", metavar="N", min=1, max=consuming.TAIL_MAX, help="Start with the last N records, by timestamp."
    ),
]
Offset = Annotated[
    int | None, typer.Option("--offset", metavar="N", min=0, help="Start at this offset of one partition.")
]
Time = Annotated[str | None, typer.Option("--time", metavar="TIME", help=f"Start at this time: {TIME_HELP}.")]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="GROUP",
        help="Start at this group's committed offsets, and commit the printed records. The group must have no members.",
    ),
]
Grep = Annotated[
    str | None,
    typer.Option("--grep", metavar="REGEX", help="Only records whose key or value matches (Python's re)."),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="TEXT",
        help=f"Format of each record, such as '{{offset}} {{value}}'. Fields: {', '.join(record_format.FIELDS)}.",
    ),
]
KeySeparator = Annotated[
    str,
    typer.Option(
        "--key-separator", metavar="TEXT", show_default=False, help="Printed between key and value (default: a tab)."
    ),
]


def consume(
    topic: options.TopicName,
    from_beginning: Annotated[bool, options.flag("--from-beginning", "Start at the first record.")] = False,
    tail: Tail = None,
    offset: Offset = None,
    time_: Time = None,
    group: Group = None,
    partition: options.Partition = None,
    count_max: Annotated[int | None, typer.Option("--max", metavar="N", min=1, help="Stop after N records.")] = None,
    follow: Annotated[bool, options.flag("--follow", "Continue with new records, until Ctrl-C.")] = False,
    where: options.Where = None,
    grep: Grep = None,
    format_: Format = None,
    key_separator: KeySeparator = "\t",
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Print stored records from a starting point (--from-beginning, --tail, --offset, --time), or new records."""
    options.check_offset("--offset", offset)
    starts = {"--from-beginning": from_beginning, "--tail": tail, "--offset": offset, "--time": time_}
    chosen = [name for name, given in starts.items() if given not in (None, False)]
    _check(chosen, has_group=group is not None, has_two_forms=as_json and format_ is not None)
    time_ms = EARLIEST if from_beginning else LATEST if time_ is None else parse_time(time_)
    show = record_format.json_of(topic) if as_json else record_format.plain(os.fsencode(key_separator))
    if format_ is not None:
        show = record_format.template(topic, format_)
    printer = _Printer(show, _choice(where, grep), count_max)
    wanted = _ReadOptions(time_ms, offset, tail, partition, group, follow or not chosen)

    async def read(client: Client) -> None:
        await _consume(client, topic, wanted, printer)

    try:
        options.run(read, ends_with_reader=True)
    except KeyboardInterrupt:
        if not wanted.goes_on:
            raise
        # Ctrl-C is the normal way to stop following


def _check(starts: list[str], *, has_group: bool, has_two_forms: bool) -> None:
    """Raises ConfigError for options that cannot be used together."""
    if len(starts) > 1:
        raise ConfigError(f"{' and '.join(starts)} cannot be used together; give one of them")
    if has_group and starts not in ([], ["--from-beginning"]):
        raise ConfigError(f"--group starts at committed offsets; omit {starts[0]}, or use `kpybroker groups reset`")
    if has_two_forms:
        raise ConfigError("--json and --format cannot be used together; give one of them")


def _choice(where: str | None, grep: str | None) -> Wanted | None:
    """Whether a record is to be printed; None for all. Raises ConfigError."""
    matches, is_found = options.filter_of(where), None if grep is None else _grepped(grep)
    if matches is None or is_found is None:
        return matches or is_found
    return lambda record: matches(record) and is_found(record)


def _grepped(text: str) -> Wanted:
    try:
        pattern = re.compile(os.fsencode(text))
    except re.error as error:
        raise ConfigError(f"--grep {text!r} is not a regular expression: {error}") from None
    return lambda record: any(part is not None and pattern.search(part) for part in (record.key, record.value))


async def _consume(client: Client, topic: str, wanted: _ReadOptions, printer: _Printer) -> None:
    waited = await client.wait_until_created(topic, remark, patient=wanted.goes_on)
    partitions = await _partitions(client, topic, wanted.partition, needs_one=wanted.offset is not None)
    # after a wait for the topic, records sent since its creation are not skipped
    begin_ms = EARLIEST if waited and wanted.time_ms == LATEST else wanted.time_ms
    ends = None if wanted.goes_on else await consuming.find_ends(client, topic, partitions, until_some=waited)
    if wanted.tail is not None:
        found, positions = await consuming.last_records(client, topic, partitions, wanted.tail)
        printer.write(found)
        if ends is not None:
            return
    else:
        positions = await consuming.find_start(client, topic, partitions, wanted.offset, begin_ms)
    if wanted.group is not None:
        positions |= await _committed(client, wanted.group, topic, positions)
    reader = consuming.TopicReader(client, topic, dict(positions), ends)
    if printer.is_done:
        return
    is_waiting_told = not (wanted.goes_on and sys.stderr.isatty())
    async for page in reader.pages():
        if not page and not is_waiting_told:
            remark(f"waiting for records of {topic}; Ctrl-C ends")
            is_waiting_told = True
        looked_at = printer.write(page)
        if wanted.group is not None and reader.positions != positions:
            positions = dict(reader.positions)
            for at, record in page[looked_at:][::-1]:
                positions[at] = record.offset  # the first record of its partition that was not printed
            await group_facts.commit(client, wanted.group, {(topic, at): offset for at, offset in positions.items()})
        if printer.is_done:
            return


async def _committed(client: Client, group: str, topic: str, positions: dict[int, int]) -> dict[int, int]:
    """The committed offsets of the group in these partitions. Raises CommandFailed if the group has members."""
    group_facts.must_be_idle(await group_facts.find(client, group))
    offsets = await group_facts.committed(client, group)
    return {index: at for (name, index), at in offsets.items() if name == topic and index in positions}


async def _partitions(client: Client, topic: str, chosen: int | None, *, needs_one: bool) -> list[int]:
    found = sorted(partition.partition_index for partition in (await client.topic(topic)).partitions)
    if chosen is not None:
        cluster_facts.require_partition(topic, chosen, found)
        return [chosen]
    if needs_one and len(found) > 1:
        raise ConfigError(f"--offset is for one partition; name it with --partition ({found[0]} to {found[-1]})")
    return found


def _visible(line: bytes) -> bytes:
    """Escape control characters for a terminal; pipes receive the bytes unchanged."""
    text = line.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text).encode()
