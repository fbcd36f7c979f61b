"""`kpybroker produce`: options, input and progress; `producing.py` sends the records."""

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

from kpybroker.cli import options
from kpybroker.cli.producing import Lines, RecordSender, SendOptions
from kpybroker.cli.show import remark, show_json
from kpybroker.client.client import Client, CommandFailed
from kpybroker.errors import ConfigError
from kpybroker.wire.records.batch import Headers
from kpybroker.wire.records.compression import CODEC_BY_NAME

READ_BYTES = 1 << 20
LINGER_S = 0.005
"""Records are sent when the input has paused for this long, or when a batch is full."""
ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
HEADERS_MAX = 1000
TYPE_HERE = "type records, one per line; Ctrl-D ends"

File = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="Read lines from this file, not from standard input.")
]
KeySeparator = Annotated[
    str | None,
    typer.Option(
        "--key-separator", metavar="TEXT", help="Separates key and value in a line. Without it, records have no key."
    ),
]
Partition = Annotated[
    int | None,
    typer.Option("--partition", metavar="N", min=0, help="Send every record to this partition, regardless of its key."),
]
Acks = Annotated[
    str,
    typer.Option(
        "--acks",
        metavar="all|1|0",
        help="Replicas that acknowledge a record: all in sync, the leader, or none.",
    ),
]
Compression = Annotated[str, typer.Option("--compression", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")]
Header = Annotated[
    list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header of every record; may be repeated.")
]
NullMarker = Annotated[
    str | None, typer.Option("--null-marker", metavar="TEXT", help="Send a null value if the value is this text.")
]
JsonLines = Annotated[
    bool,
    options.flag(
        "--json-lines",
        "Each line is a record as `kpybroker consume --json` prints it: key, value, headers, partition, timestamp.",
    ),
]


def produce(
    topic: options.TopicName,
    file: File = None,
    key_separator: KeySeparator = None,
    partition: Partition = None,
    acks: Acks = "all",
    compression: Compression = "none",
    header: Header = None,
    null_marker: NullMarker = None,
    json_lines: JsonLines = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Send lines of a file or of standard input, one record each."""
    if json_lines and (key_separator is not None or null_marker is not None):
        raise ConfigError("JSON lines have their own keys and nulls; omit --key-separator and --null-marker")
    if acks not in ACKS:
        raise ConfigError(f"--acks {acks!r}: write all, 1 or 0")
    if compression not in CODEC_BY_NAME:
        raise ConfigError(f"--compression {compression!r}: write one of {', '.join(CODEC_BY_NAME)}")
    if key_separator == "":
        raise ConfigError("--key-separator is empty; give the text that separates key and value")
    how = SendOptions(
        partition=partition,
        acks=ACKS[acks],
        codec=CODEC_BY_NAME[compression],
        separator=None if key_separator is None else os.fsencode(key_separator),
        null_marker=None if null_marker is None else os.fsencode(null_marker),
        headers=_headers(header or []),
        is_json=json_lines,
    )
    source, size = _open(file)
    if source.isatty():
        remark(TYPE_HERE)

    async def send(client: Client) -> None:
        sender = RecordSender(client, topic, how)
        began = time.monotonic()
        if await sender.start():
            remark(f"created topic {topic}")
        await _send_all(sender, how, source, size)
        _report(sender, topic, time.monotonic() - began, as_json=as_json)

    options.run(send)


def _open(file: Path | None) -> tuple[BinaryIO, int | None]:
    """The input, and its size if known."""
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


async def _send_all(sender: RecordSender, how: SendOptions, source: BinaryIO, size: int | None) -> None:
    """Read and send concurrently: lines from a pipe are sent as they arrive, not when the pipe is closed."""
    lines = Lines(how)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    more = () if size is None else (TimeRemainingColumn(),)
    console = Console(stderr=True)
    # with a terminal as stdin, a bar would overwrite what is being typed
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
    """Read at least one byte; b"" at the end. Reads in a daemon thread, so that Ctrl-C need not wait for it."""
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


def _report(sender: RecordSender, topic: str, took_s: float, *, as_json: bool) -> None:
    count = sum(sender.sent.values())
    if as_json:
        partitions = {str(partition): sender.sent[partition] for partition in sorted(sender.sent)}
        show_json({"topic": topic, "records": count, "bytes": sender.sent_bytes, "partitions": partitions})
        return
    records = "1 record" if count == 1 else f"{count:,} records"
    remark(f"sent {records} ({sender.sent_bytes:,} bytes) to {topic} in {took_s:.2f} s")
