"""Transcripts of Kafka's tools: scripts with commands and their output, recorded on Apache Kafka.

In a script, `$ tool arguments` is a command, `< line` is a line of its stdin, `> name text` is a file that is created
before the next command, and `[1]` is an exit code other than 0. The lines below a command are its output, stdout first.
With `$~` instead of `$`, the lines are compared in any order; with `$*`, the command is repeated until its output
matches (on Apache Kafka all commands are repeated, because its brokers apply changes some moments after their
responses). `{port}` is the broker's port, `{data}` its directory, and `{tmp}` the directory of the files. `{id}` and
`{ms}` stand for ids and times, which differ from run to run. `…` stands for any text, and as the last line for any
further lines. Lines after `≠` are kpybroker's output if it does not support a feature.

`python -m compat_tests.transcripts name ...` runs scripts on Apache Kafka and records the output of the tools again.
"""

import re
import shlex
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from oracle.broker import KPyBroker
from oracle.kafka import Kafka
from oracle.tools import WITHOUT_BROKER, tool

HERE = Path(__file__).resolve().parent
PATIENCE_S = 15.0
TOOL_TIMEOUT_S = 45.0
ANYTHING = "…"
PROMPTS = ("$", "$~", "$*")
SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
"""The settings of the broker on which scripts run."""
VARYING = (
    (re.compile(r"\b((?:TopicId|Cluster ID|ClusterId|Directory ?Id|id): ?\"?)[A-Za-z0-9_-]{22}"), r"\1{id}"),
    (re.compile(r"\b[12][0-9]{12}\b"), "{ms}"),
    (re.compile(r"\[?20\d\d-\d\d-\d\d[ T][0-9:,.+]+\]? ?"), "{ms} "),
    (re.compile(r"adminclient-\d+"), "adminclient-{n}"),
    (re.compile(r"\s+"), " "),
)
USAGE = "Option Description"
"""All options of a tool follow; they do not depend on the broker."""
NOISE = re.compile(r"^\s+at |^\s*\.\.\. \d+ more|^ \(org\.apache\.kafka\.[a-z.]*[A-Za-z]+\)$")


@dataclass
class Exchange:
    """One command, its input, and its output."""

    prompt: str
    command: str
    stdin: str = ""
    files: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    instead: list[str] = field(default_factory=list)

    def due_from(self, target: str) -> list[str]:
        """The expected output of the target."""
        return self.instead or self.said if target == KPyBroker.name else self.said

    def accepts(self, heard: list[str], target: str) -> bool:
        """Whether this is the expected output, in which `…` stands for anything."""
        due = self.due_from(target)
        if self.prompt == "$~":
            due, heard = sorted(due), sorted(heard)
        if due[-1:] == [ANYTHING]:
            due, heard = due[:-1], heard[: len(due) - 1]
        return len(due) == len(heard) and all(map(_like, due, heard))


def _like(due: str, heard: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, due.split(ANYTHING))), heard) is not None


def parse(text: str) -> list[Exchange | str]:
    """The exchanges in a script, and the lines between them: comments and empty lines."""
    files: dict[str, str] = {}
    last: Exchange | None = None
    found: list[Exchange | str] = []
    for line in text.splitlines():
        first, _, rest = line.partition(" ")
        if first in PROMPTS:
            last = Exchange(first, rest, files=files)
            files = {}
            found.append(last)
        elif first == ">":
            name, _, content = rest.partition(" ")
            files[name] = content
        elif first == "<" and last is not None:
            last.stdin += rest + "\n"
        elif first == "≠" and last is not None:
            last.instead.append(rest)
        elif not line or first == "#":
            found.append(line)
        else:
            assert last is not None, line
            last.said.append(line)
    return found


def written(exchanges: list[Exchange | str]) -> str:
    """The script with these exchanges."""
    lines: list[str] = []
    for one in exchanges:
        if isinstance(one, str):
            lines.append(one)
            continue
        lines += [f"> {name} {content}" for name, content in one.files.items()]
        lines.append(f"{one.prompt} {one.command}")
        lines += [f"< {line}" for line in one.stdin.splitlines()]
        lines += [*one.said, *(f"≠ {line}" for line in one.instead)]
    return "\n".join(lines) + "\n"


class Player:
    """Runs commands on one broker."""

    def __init__(self, broker: KPyBroker | Kafka, directory: Path) -> None:
        self._broker = broker
        self._names = {"{port}": str(broker.port), "{data}": str(broker.data), "{tmp}": str(directory)}
        self._directory = directory

    def hear(self, exchange: Exchange) -> list[str]:
        """Run the command. Returns its exit code unless it is 0, then its output lines."""
        for name, content in exchange.files.items():
            (self._directory / name).write_text(self._given(content) + "\n")
        name, *args = shlex.split(self._given(exchange.command))
        bootstrap = "" if name in WITHOUT_BROKER or f"127.0.0.1:{self._broker.port}" in args else self._broker.bootstrap
        try:
            ran = tool(name, *args, bootstrap=bootstrap, stdin=exchange.stdin, timeout_s=TOOL_TIMEOUT_S)
        except TimeoutError:
            return [f"[not done in {TOOL_TIMEOUT_S:.0f} s]"]
        lines = [f"[{ran.code}]"] if ran.code else []
        lines += [line for line in (ran.out + ran.err).splitlines() if not NOISE.match(line)]
        told = [line for line in map(self._told, lines) if line]
        return told[: told.index(USAGE)] if USAGE in told else told

    def play(self, exchange: Exchange, patience_s: float) -> list[str]:
        """Run the command until its output is as expected, or until a timeout. Returns the last output."""
        deadline = time.monotonic() + (PATIENCE_S if exchange.prompt == "$*" else patience_s)
        while True:
            heard = self.hear(exchange)
            if exchange.accepts(heard, self._broker.name) or time.monotonic() > deadline:
                return heard
            time.sleep(0.1)

    def _given(self, text: str) -> str:
        for name, value in self._names.items():
            text = text.replace(name, value)
        return text

    def _told(self, line: str) -> str:
        for name, value in self._names.items():
            line = line.replace(value, name)
        for varying, shown in VARYING:
            line = varying.sub(shown, line)
        return line.strip()


def record(name: str, broker: KPyBroker | Kafka) -> None:
    """Run a script and record the output; lines that still match stay unchanged."""
    path = HERE / f"{name}.txt"
    exchanges = parse(path.read_text())
    with tempfile.TemporaryDirectory() as directory:
        player = Player(broker, Path(directory))
        for one in exchanges:
            if isinstance(one, Exchange):
                heard = player.play(one, patience_s=0.0 if not one.said else 3.0)
                if not one.accepts(heard, broker.name):
                    time.sleep(1.0)  # the first output may show the state before the change
                    one.said = player.hear(one) if not one.said and _only_looks(one) else heard
    path.write_text(written(exchanges))


def _only_looks(exchange: Exchange) -> bool:
    return any(word in exchange.command for word in ("--describe", "--list", " describe", " list", "get-offsets"))
