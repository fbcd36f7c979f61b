"""Executes commands of tests on a broker with --commands: one JSON object per line, and one per response.

- `{"do": "fault", "api": "Produce", "kind": "error", "error": "NOT_LEADER_OR_FOLLOWER", ...}` injects a fault, with the
  fields of `FaultRule`, and returns its number. `{"do": "hits", "fault": 1}` returns how many requests it has affected;
  `{"do": "heal", "fault": 1}` also removes it.
- `{"do": "disk fault", "kind": "slow", "delay_ms": 50, "topic": "orders", "partition": 0}` does the same with the disk,
  and `disk hits` and `disk heal` belong to it.
- `{"do": "cut", "ports": [9093]}` cuts this broker off from these ports, and from no others.
- `{"do": "compact", "topic": "orders"}` compacts the logs of a topic.
- `{"do": "advance", "ms": 5000}` advances the clock. The response has `next_ms`, the time until something expires, or
  null. `{"do": "retain and clean"}` applies retention and cleans logs.

`recording_commands.py` has the commands about recorded requests. A response with `refused` contains the error in the
command. A command with a `number` gets it back in the response.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kpybroker.broker.clock_advance import advance, compact, retain_and_clean
from kpybroker.cli import fault_commands, recording_commands
from kpybroker.server.server import Server
from kpybroker.similar_names import meant
from kpybroker.world.faulty import FaultyWorld

ADVANCE_MS_MAX = 100 * 366 * 86_400_000
"""The most that one command advances the clock: a century."""


async def execute(server: Server, line: bytes) -> str:
    """Execute one command and return the response as JSON, with the `number` that the command may have."""
    number = None
    try:
        command = json.loads(line)
        if not isinstance(command, dict):
            raise TypeError("a command is a JSON object")
        number, do = command.pop("number", None), command.pop("do", None)
        if do in recording_commands.COMMANDS:
            answer = recording_commands.COMMANDS[do](server, command)
        elif do in COMMANDS:
            answer = await COMMANDS[do](server, command)
        else:
            near = meant(do, [*COMMANDS, *recording_commands.COMMANDS])
            raise ValueError(f"there is no command {do!r}{near}")
    except (ValueError, TypeError) as problem:
        answer = {"refused": str(problem)}
    return json.dumps(answer if number is None else {**answer, "number": number})


async def _fault(server: Server, command: Mapping[str, Any]) -> dict[str, Any]:
    return {"fault": server.faults.add(fault_commands.rule_of(command))}


async def _hits(server: Server, command: Mapping[str, Any]) -> dict[str, Any]:
    return {"hits": fault_commands.with_number(command, server.faults.hits)}


async def _heal(server: Server, command: Mapping[str, Any]) -> dict[str, Any]:
    return {"hits": fault_commands.with_number(command, server.faults.remove)}


async def _disk_fault(server: Server, command: Mapping[str, Any]) -> dict[str, Any]:
    return {"fault": _world(server).disk.add(fault_commands.disk_rule_of(command))}


async def _disk_hits(server: Server, command: Mapping[str, Any]) -> dict[str, Any]:
    return {"hits": fault_commands.with_number(command, _world(server).disk.hits)}


async def _disk_heal(server: Server, command: Mapping[str, Any]) -> dict[str, Any]:
    return {"hits": fault_commands.with_number(command, _world(server).disk.remove)}


async def _cut(server: Server, command: Mapping[str, Any]) -> dict[str, Any]:
    ports = command.get("ports")
    if not isinstance(ports, list) or any(type(port) is not int for port in ports):
        raise TypeError(f"ports={ports!r} is no list of port numbers")
    _world(server).network.cut(ports)
    return {}


async def _compact(server: Server, command: Mapping[str, Any]) -> dict[str, Any]:
    topic = command.get("topic")
    known = server.broker.metadata.image.topics
    if not isinstance(topic, str) or topic not in known:
        raise ValueError(f"there is no topic {topic!r}{meant(topic, known)}")
    await compact(server.broker, topic)
    return {}


def _world(server: Server) -> FaultyWorld:
    world = server.broker.world
    if not isinstance(world, FaultyWorld):
        raise TypeError("only brokers of the test kit have faults of disks and between brokers")
    return world


async def _advance(server: Server, command: Mapping[str, Any]) -> dict[str, Any]:
    by_ms = command.get("ms")
    if type(by_ms) is not int or not 0 <= by_ms <= ADVANCE_MS_MAX:
        raise ValueError(f"ms={by_ms!r}: must be an integer from 0 to {ADVANCE_MS_MAX}")
    await advance(server.broker, by_ms)
    return {"next_ms": server.broker.world.expiry.next_ms()}


async def _retain_and_clean(server: Server, command: Mapping[str, Any]) -> dict[str, Any]:
    await retain_and_clean(server.broker)
    return {}


COMMANDS: Mapping[str, Callable[[Server, Mapping[str, Any]], Awaitable[dict[str, Any]]]] = {
    "fault": _fault,
    "hits": _hits,
    "heal": _heal,
    "disk fault": _disk_fault,
    "disk hits": _disk_hits,
    "disk heal": _disk_heal,
    "cut": _cut,
    "compact": _compact,
    "advance": _advance,
    "retain and clean": _retain_and_clean,
}
