"""Options common to all commands that connect to a broker, and a function that runs a command's coroutine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperOption

from kpybroker.client import session
from kpybroker.client.client import DEFAULT_BOOTSTRAP, Client
from kpybroker.config.properties import shown_name
from kpybroker.config.property_files import read_properties
from kpybroker.errors import ConfigError

if TYPE_CHECKING:
    from kpybroker.wire.records.batch import Record

TIMEOUT_S_MAX = 3600.0
BOOTSTRAP_VARIABLE = "KPYBROKER_BOOTSTRAP"
"""Read if --bootstrap is not given. Typer's `envvar` would override an option given before the command's name."""
CONFIG_VARIABLE = "KPYBROKER_COMMAND_CONFIG"

_given: dict[str, Any] = {}
"""Values of --bootstrap, --timeout and --command-config, given before or after the command's name (the last one takes
effect)."""


def forget() -> None:
    """Remove the options of an earlier command in this process."""
    _given.clear()


def _remember(parameter: typer.CallbackParam, value: Any) -> Any:
    if value == "":  # an unset variable in a script, for example
        raise typer.BadParameter("the value is empty")
    if value is not None and parameter.name is not None:
        _given[parameter.name] = value
    return value


Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT",
        callback=_remember,
        help=f"A broker of the cluster (${BOOTSTRAP_VARIABLE}, else {DEFAULT_BOOTSTRAP}).",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        max=TIMEOUT_S_MAX,
        callback=_remember,
        help="How long to wait for the broker (default: 15).",
    ),
]


COMMAND_CONFIG = "--command-config"
CONFIG_HELP = f"A file of client settings, for example for TLS and SASL, as for Kafka's tools (${CONFIG_VARIABLE})."
CommandConfig = Annotated[
    str | None, typer.Option(COMMAND_CONFIG, metavar="FILE", callback=_remember, help=CONFIG_HELP)
]


def command_config_option() -> TyperOption:
    """The --command-config option of one command. Before the command's name, the program's own option is used."""
    return TyperOption(
        param_decls=["command_config", COMMAND_CONFIG],
        metavar="FILE",
        help=CONFIG_HELP,
        expose_value=False,
        callback=lambda _, parameter, value: _remember(parameter, value),
    )


def filter_of(where: str | None) -> Callable[[Record], bool] | None:
    """Whether a record matches the expression of --where; None if there is none. Raises ConfigError."""
    if where is None:
        return None
    from kpybroker.wire.records.record_filter import parse_filter  # few commands need it

    try:
        return parse_filter(where).matches
    except ConfigError as error:
        raise ConfigError(f"--where: {error}") from None


def flag(name: str, summary: str) -> Any:
    """An option without a value; typer would show it with <bool>."""
    return typer.Option(name, metavar="", help=summary)


Json = Annotated[bool, flag("--json", "Print JSON, for programs.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
Partition = Annotated[int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.")]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="EXPRESSION",
        help="Only records that match, such as 'tag == \"new\" and not tombstone' (see docs/record-filters.md).",
    ),
]
Execute = Annotated[bool, flag("--execute", "Make the change; without this, only the plan is shown.")]
ONLY_A_PLAN = "nothing was changed; add --execute to do it"
OFFSET_MAX = 2**63 - 1


def check_offset(option: str, value: int | None) -> None:
    """Check the range of an offset, or of a number to shift offsets by. Raises ConfigError."""
    if value is not None and abs(value) > OFFSET_MAX:
        raise ConfigError(f"{option} {value}: offsets go up to {OFFSET_MAX}")


def parse_pair(text: str, what: str) -> tuple[str, str]:
    """Split `NAME=VALUE`; the value keeps its spaces. Raises ConfigError."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"cannot read the {what} {shown_name(text)}: write NAME=VALUE")
    return name.strip(), value


def timeout_ms() -> int:
    """The value of --timeout in ms, or the default."""
    return int(1000 * _given["timeout"]) if "timeout" in _given else session.TIMEOUT_MS


def bootstrap() -> str:
    """The bootstrap servers, `host:port[,host:port...]`."""
    named = _given.get("bootstrap") or os.environ.get(BOOTSTRAP_VARIABLE)
    return named or properties().get("bootstrap.servers") or DEFAULT_BOOTSTRAP


def properties() -> Mapping[str, str]:
    """The settings in the file of --command-config. Raises ConfigError."""
    path = command_config()
    return read_properties(path) if path else session.NO_PROPERTIES


def command_config() -> Path | None:
    """The file of --command-config, if there is one."""
    path = _given.get("command_config") or os.environ.get(CONFIG_VARIABLE)
    return Path(path) if path else None


def run(
    scenario: Callable[[Client], Awaitable[None]], where: str | None = None, *, ends_with_reader: bool = False
) -> None:
    """Connect, await `scenario` with the client, and disconnect. Raises CommandFailed for error responses and lost
    connections.

    `where`: bootstrap servers that replace those of the options. `ends_with_reader`: raise BrokenPipeError as soon as
    the reader of stdout closes it, not only at the next print.
    """
    around = _reader_of_stdout if ends_with_reader else contextlib.nullcontext
    session.run(scenario, where or bootstrap(), timeout_ms(), properties=properties(), around=around)


@contextlib.contextmanager
def _reader_of_stdout() -> Iterator[None]:
    """Raise BrokenPipeError in the current task when stdout is a pipe and its reader closes it."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    has_gone = False

    def on_closed() -> None:
        nonlocal has_gone
        has_gone = True
        loop.remove_reader(stdout)
        task.cancel()

    try:
        stdout = sys.stdout.fileno()
        is_pipe = stat.S_ISFIFO(os.fstat(stdout).st_mode)
    except (OSError, ValueError):  # closed, or not a file
        is_pipe = False
    is_pipe = is_pipe and sys.platform != "win32"  # there, only the next print notices it
    if is_pipe:
        loop.add_reader(stdout, on_closed)  # a write end is "readable" when its reader closes the pipe
    try:
        yield
    except asyncio.CancelledError:
        if has_gone:
            raise BrokenPipeError from None
        raise
    finally:
        if is_pipe:
            loop.remove_reader(stdout)
