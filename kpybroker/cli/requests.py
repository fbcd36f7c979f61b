"""`kpybroker requests`: show recorded requests of clients, and send them again to another cluster."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kpybroker.cli import options
from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.show import remark, show_json, show_table
from kpybroker.client import recorded, replaying
from kpybroker.client.client import Client, CommandFailed
from kpybroker.client.recorded import Filter, RecordedRequest
from kpybroker.errors import ConfigError

app = typer.Typer(
    name="requests",
    cls=CommandGroup,
    help="Show and replay the requests of clients that a test has recorded (`Recording.save`).",
    no_args_is_help=True,
)
File = Annotated[Path, typer.Argument(metavar="FILE", help="A recording.")]
Api = Annotated[str | None, typer.Option("--api", metavar="NAME", help="Only these requests, such as Produce.")]
ABOUT = recorded.COLUMNS.index("ABOUT")


def _read(file: Path) -> list[RecordedRequest]:
    """The requests in a file, in the order in which they came. Raises CommandFailed."""
    try:
        return sorted(recorded.load(file), key=lambda request: request.at_us)
    except OSError as error:
        raise CommandFailed(f"cannot read {file}: {error.strerror or error}") from error
    except ValueError as error:
        raise CommandFailed(str(error)) from error


@app.command("show")
def show(
    file: File,
    api: Api = None,
    topic: Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Only if they name this topic.")] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="ID", help="Only if they name this group.")] = None,
    client_id: Annotated[str | None, typer.Option("--client-id", metavar="ID", help="Only of this client.")] = None,
    error: Annotated[
        str | None, typer.Option("--error", metavar="NAME", help="Only if the response has this error code.")
    ] = None,
    as_json: Annotated[bool, options.flag("--json", "Print a line of JSON for each request, with all fields.")] = False,
) -> None:
    """Show recorded requests, one line for each."""
    try:
        wanted = Filter(api, topic, group, client_id, error=error).check()
    except ValueError as refusal:
        raise ConfigError(str(refusal)) from refusal
    found = [request for request in _read(file) if wanted.matches(request)]
    if as_json:
        for request in found:
            show_json(_as_json(request))
    elif found:
        show_table(recorded.COLUMNS, list(recorded.rows_of(found)), folds=ABOUT)
    else:
        remark("no such requests")


def _as_json(request: RecordedRequest) -> dict[str, Any]:
    return {
        "time": request.at.isoformat(),
        "node": request.node,
        "address": request.address,
        "principal": request.principal,
        "client_id": request.client_id,
        "request": request.api,
        "version": request.version,
        "correlation_id": request.correlation_id,
        "topics": request.topics,
        "groups": request.groups,
        "duration_ms": None if request.duration_us is None else request.duration_us / 1000,
        "result": request.outcome,
        "fields": _without_bytes(request.fields),
        "response": _without_bytes(request.response_fields),
    }


def _without_bytes(value: Any) -> Any:
    """The same with base64 instead of bytes."""
    if isinstance(value, dict):
        return {name: _without_bytes(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_bytes(each) for each in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


@app.command("replay")
def replay(
    file: File,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Send recorded requests again, in the same order, and show which get other errors than in the recording."""
    requests = _read(file)

    async def send(client: Client) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("replaying", total=len(requests))
            done = await replaying.replay_with(
                client, requests, options.timeout_ms() / 1000, lambda at, _: progress.update(bar, completed=at)
            )
        _show(done, as_json=as_json)

    options.run(send)


def _show(done: replaying.Replay, *, as_json: bool) -> None:
    """Raises CommandFailed if there are differences."""
    if as_json:
        names = ("request", "all", "same", "different", "not_compared")
        show_json([dict(zip(names, row, strict=True)) for row in done.summary()])
    else:
        show_table(("REQUEST", "ALL", "SAME", "DIFFERENT", "NOT COMPARED"), done.summary())
    for line in done.remarks():
        remark(line)
    if done.differences:
        raise CommandFailed(f"{len(done.differences)} requests got other errors than in the recording")
