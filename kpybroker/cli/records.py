"""`kpybroker produce` and `kpybroker consume`: lines in, records out."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from kpybroker.cli import consuming, options
from kpybroker.cli.client import EARLIEST, LATEST, Client, CommandFailed
from kpybroker.cli.producing import HowToSend, Lines, Sender
from kpybroker.cli.show import remark, show_json
from kpybroker.errors import ConfigError
from kpybroker.wire.batch import Headers
from kpybroker.wire.compression import CODEC_BY_NAME

READ_BYTES = 1 << 20
LINGER_S = 0.005
"""What has been read is sent when the input pauses for so long, or a batch is full."""
ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
HEADERS_MAX = 1000
TOPIC_HELP = "Its name."


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help=TOPIC_HELP)],
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Read lines from here, not from standard input.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", metavar="TEXT", help="Parts the key of a line from its value; without it, no keys."
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Send all there, whatever the keys.")
    ] = None,
    acks: Annotated[
        str,
        typer.Option(
            "--acks", metavar="all|1|0", help="Who must have a record: all in-sync replicas, the leader, or nobody."
        ),
    ] = "all",
    compression: Annotated[
        str, typer.Option("--compression", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="For every record; may be repeated.")
    ] = None,
    null_marker: Annotated[
        str | None, typer.Option("--null-marker", metavar="TEXT", help="A value equal to this is null.")
    ] = None,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Send lines of a file or of standard input, one record each."""
    if acks not in ACKS:
        raise ConfigError(f"--acks {acks!r}: write all, 1 or 0")
    if compression not in CODEC_BY_NAME:
        raise ConfigError(f"--compression {compression!r}: write one of {', '.join(CODEC_BY_NAME)}")
    if key_separator == "":
        raise ConfigError("--key-separator is empty; give the text that parts key and value")
    how = HowToSend(
        partition=partition,
        acks=ACKS[acks],
        codec=CODEC_BY_NAME[compression],
        separator=None if key_separator is None else os.fsencode(key_separator),
        null_marker=None if null_marker is None else os.fsencode(null_marker),
        headers=_headers(header or []),
    )
    source, size = _open(file)

    async def send(client: Client) -> None:
        sender = Sender(client, topic, how)
        began = time.monotonic()
        if await sender.start():
            remark(f"created topic {topic}")
        await _send_all(sender, how, source, size)
        _report(sender, topic, time.monotonic() - began, as_json=as_json)

    options.run(send)


def _open(file: Path | None) -> tuple[BinaryIO, int | None]:
    """The input and its size, where it has one."""
    if file is None:
        if sys.stdin is None:
            raise ConfigError("standard input is closed; give --file")
        return sys.stdin.buffer, None
    try:
        source = file.open("rb")
        return source, os.fstat(source.fileno()).st_size or None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from error


def _headers(texts: list[str]) -> Headers:
    if len(texts) > HEADERS_MAX:
        raise ConfigError(f"{len(texts)} headers; at most {HEADERS_MAX}")
    pairs = [options.parse_pair(text, "header") for text in texts]
    return tuple((name, os.fsencode(value)) for name, value in pairs)


async def _send_all(sender: Sender, how: HowToSend, source: BinaryIO, size: int | None) -> None:
    """Read and send at once: what a pipe gives is sent when it comes, not when it ends."""
    lines = Lines(how)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    more = () if size is None else (TimeRemainingColumn(),)
    console = Console(stderr=True)
    # beside a terminal as stdin, a bar would write over what is being typed
    is_hidden = not console.is_terminal or source.isatty()
    with Progress(*columns, *more, console=console, transient=True, disable=is_hidden) as progress:
        bar = progress.add_task("sending", total=size)
        reading = asyncio.ensure_future(_read(source))
        try:
            while True:
                if not (await asyncio.wait({reading}, timeout=LINGER_S))[0]:
                    await sender.flush()
                if not (data := await reading):
                    break
                reading = asyncio.ensure_future(_read(source))
                await sender.add(lines.feed(data))
                progress.advance(bar, len(data))
            await sender.add(lines.end())
        except CommandFailed:
            await sender.flush()
            raise
        finally:
            reading.cancel()
        await sender.flush()


async def _read(source: BinaryIO) -> bytes:
    """What is there, waiting for at least one byte; b"" at the end. A thread that Ctrl-C need not wait for."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[bytes] = loop.create_future()

    def give(data: bytes, error: OSError | None) -> None:
        if found.done():
            return
        if error is not None:
            found.set_exception(ConfigError(f"cannot read the input: {error.strerror or error}"))
        else:
            found.set_result(data)

    def read() -> None:
        try:
            data, failure = os.read(source.fileno(), READ_BYTES), None
        except OSError as error:
            data, failure = b"", error
        if not loop.is_closed():
            loop.call_soon_threadsafe(give, data, failure)

    threading.Thread(target=read, daemon=True).start()
    return await found


def _report(sender: Sender, topic: str, took_s: float, *, as_json: bool) -> None:
    count = sum(sender.sent.values())
    if as_json:
        partitions = {str(partition): sender.sent[partition] for partition in sorted(sender.sent)}
        show_json({"topic": topic, "records": count, "bytes": sender.sent_bytes, "partitions": partitions})
        return
    records = "1 record" if count == 1 else f"{count:,} records"
    remark(f"sent {records} ({sender.sent_bytes:,} bytes) to {topic} in {took_s:.2f} s")


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help=TOPIC_HELP)],
    from_beginning: Annotated[bool, options.flag("--from-beginning", "From the first record stored.")] = False,
    offset: Annotated[
        int | None, typer.Option("--offset", metavar="N", min=0, help="From this offset of one partition.")
    ] = None,
    time_: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="TIME", help="From this time on: 2026-07-01T12:00, or milliseconds since the epoch."
        ),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", metavar="N", min=0, help="Only this one.")] = None,
    count_max: Annotated[int | None, typer.Option("--max", metavar="N", min=1, help="Stop after N records.")] = None,
    follow: Annotated[bool, options.flag("--follow", "Go on with what arrives, until Ctrl-C.")] = False,
    key_separator: Annotated[
        str,
        typer.Option(
            "--key-separator", metavar="TEXT", show_default=False, help="Between a key and its value (a tab)."
        ),
    ] = "\t",
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Print records: from a start on (--from-beginning, --offset, --time) those stored, else those that arrive."""
    options.check_offset("--offset", offset)
    starts = [from_beginning, offset is not None, time_ is not None]
    if sum(starts) > 1:
        raise ConfigError("--from-beginning, --offset and --time exclude each other; give one of them")
    time_ms = EARLIEST if from_beginning else LATEST if time_ is None else consuming.parse_time(time_)
    show = consuming.json_of(topic) if as_json else consuming.plain(os.fsencode(key_separator))

    async def tail(client: Client) -> None:
        goes_on = follow or not any(starts)
        waited = await client.wait_until_created(topic, remark, patient=goes_on)
        partitions = await _partitions(client, topic, partition, needs_one=offset is not None)
        # what was sent since the topic was created is not passed over
        begin_ms = EARLIEST if waited and time_ms == LATEST else time_ms
        positions = await consuming.find_start(client, topic, partitions, offset, begin_ms)
        ends = None if goes_on else await consuming.find_ends(client, topic, partitions, until_some=waited)
        reader = consuming.Reader(client, topic, positions, ends)
        await _print_records(reader, show, count_max)

    try:
        options.run(tail)
    except KeyboardInterrupt:
        if any(starts) and not follow:
            raise
        # the usual end of following


async def _partitions(client: Client, topic: str, chosen: int | None, *, needs_one: bool) -> list[int]:
    found = sorted(partition.partition_index for partition in (await client.topic(topic)).partitions)
    if chosen is not None:
        if chosen not in found:
            raise CommandFailed(f"{topic} has no partition {chosen}: there are {found[0]} to {found[-1]}")
        return [chosen]
    if needs_one and len(found) > 1:
        raise ConfigError(
            f"--offset counts within one partition; say which with --partition ({found[0]} to {found[-1]})"
        )
    return found


async def _print_records(reader: consuming.Reader, show: consuming.Show, count_max: int | None) -> None:
    out = sys.stdout.buffer
    is_terminal = sys.stdout.isatty()
    count = 0
    async for page in reader.pages():
        lines: list[bytes] = []
        for partition, record in page if count_max is None else page[: count_max - count]:
            line = show(partition, record)
            if isinstance(line, str):
                line = line.encode()
            elif is_terminal:
                line = _visible(line)
            lines += line, b"\n"
        out.write(b"".join(lines))
        out.flush()
        count += len(lines) // 2
        if count == count_max:
            return


def _visible(line: bytes) -> bytes:
    """What a terminal may be given: bytes that mean something to it are for pipes only."""
    text = line.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text).encode()
