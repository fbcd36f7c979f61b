"""The program of a broker's process: it first imports the broker, and then reads the command that it executes.

So a process can be started before it is needed. The command is one line of JSON on standard input, with the arguments
of the program `kpybroker`, its working directory, its environment, the file for its standard error, and the time by
which its clock is ahead. After it, standard input has the commands of `cli/control.py`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from kpybroker.cli import early

USED_AT_START = (
    "api_versions",
    "begin_quorum_epoch",
    "broker_heartbeat",
    "broker_registration",
    "fetch",
    "metadata",
    "produce",
    "vote",
)
"""Handlers that every node needs while it starts. Other handlers are imported on first use."""
COORDINATORS = ("groups", "transactions")
"""Coordinators that many tests use soon after the start. A broker imports them at their first use."""


def read_line() -> bytes:
    """Read a line without reading what follows it; empty if standard input was closed before."""
    line = bytearray()
    while byte := os.read(0, 1):
        if byte == b"\n":
            return bytes(line)
        line += byte
    return b""


def main() -> None:
    """Import the broker, read the command, and execute it."""
    early.prepare()
    from kpybroker.cli import arguments, control, serving  # noqa: F401  # what the command will need
    from kpybroker.errors import ConfigError
    from kpybroker.server import node  # noqa: F401
    from kpybroker.world.faulty import FaultyWorld
    from kpybroker.world.real import real_world

    for name in USED_AT_START:
        importlib.import_module(f"kpybroker.handlers.{name}")
    for name in COORDINATORS:
        importlib.import_module(f"kpybroker.{name}.coordinator")
    line = read_line()
    if not line:
        return
    command = json.loads(line)
    log = os.open(command["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(command["directory"])
    os.environ.clear()
    os.environ.update(command["environment"])
    try:
        arguments.run_serving(command["arguments"], FaultyWorld(real_world(command["clock_ahead_ms"])))
    except ConfigError as problem:
        print(f"kpybroker: {problem}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
