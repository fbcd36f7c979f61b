"""Executes commands of tests on a broker with --control: one JSON object per line, and one per response.

`{"do": "fault", "api": "Produce", "kind": "error", "error": "NOT_LEADER_OR_FOLLOWER", ...}` injects a fault, with the
fields of `FaultRule`, and returns its number. `{"do": "hits", "fault": 1}` returns how many requests it has affected;
`{"do": "heal", "fault": 1}` also removes it. `recording_commands.py` has the commands about recorded requests. A
response with `refused` contains the error in the command.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kpybroker.cli import recording_commands
from kpybroker.client.client import nearest_name
from kpybroker.errors import ErrorCode
from kpybroker.server.requests.faults import ERROR, KINDS, TOPIC_LISTS, WITHOUT_TOPICS, FaultRule, Faults
from kpybroker.server.server import Server
from kpybroker.wire.api import API, Audience, by_name

DELAY_MS_MAX = 3_600_000
COUNT_MAX = 2**31 - 1
_TYPES: Mapping[str, type] = {
    "error": str, "delay_ms": int, "client_id": str, "group": str, "topic": str, "skip": int, "times": int,
    "probability": float,
}  # fmt: skip


def execute(server: Server, line: bytes) -> str:
    """Execute one command and return the response as JSON."""
    try:
        answer = _execute(server, json.loads(line))
    except (ValueError, TypeError) as problem:
        answer = {"refused": str(problem)}
    return json.dumps(answer)


def _execute(server: Server, command: Any) -> dict[str, Any]:
    if not isinstance(command, dict):
        raise TypeError("a command is a JSON object")
    do = command.pop("do", None)
    if isinstance(do, str) and do in recording_commands.COMMANDS:
        return recording_commands.COMMANDS[do](server, command)
    return _execute_fault(server.faults, do, command)


def _execute_fault(faults: Faults, do: object, command: dict[str, Any]) -> dict[str, Any]:
    if do == "fault":
        return {"fault": faults.add(rule_of(command))}
    if do not in ("hits", "heal"):
        raise ValueError(
            f"there is no command {do!r}; there are fault, hits, heal, {', '.join(recording_commands.COMMANDS)}"
        )
    try:
        number = command["fault"]
        return {"hits": faults.hits(number) if do == "hits" else faults.remove(number)}
    except KeyError:
        raise ValueError(f"there is no fault {command.get('fault')!r}") from None


def rule_of(given: Mapping[str, Any]) -> FaultRule:
    """The rule with these fields. Raises ValueError for a rule that can never match, with the most similar
    valid name."""
    fields = dict(given)
    name, kind = fields.pop("api", None), fields.pop("kind", None)
    served = [api.name for api in API if api.audience is not Audience.BROKER]
    if name not in served:
        raise ValueError(f"no client sends {name!r} requests{_meant(name, served)}")
    if kind not in KINDS:
        raise ValueError(f"there is no fault {kind!r}{_meant(kind, KINDS)}")
    for field, value in fields.items():
        wanted = _TYPES.get(field)
        if wanted is None:
            raise ValueError(f"a fault has no {field!r}{_meant(field, _TYPES)}")
        if (
            value is None
            or isinstance(value, bool)
            or not isinstance(value, (int, float) if wanted is float else wanted)
        ):
            raise ValueError(f"{field}={value!r} is not of type {wanted.__name__}")
    error = fields.pop("error", None)
    if (error is not None) != (kind == ERROR):
        raise ValueError("an error fault needs the name of an error" if kind == ERROR else f"{kind} has no error")
    code = _code_of(error)
    rule = FaultRule(by_name[name], kind, code, **fields)
    _check_numbers(rule)
    _check_scope(rule)
    return rule


def _code_of(error: str | None) -> ErrorCode:
    codes = [code.name for code in ErrorCode if code is not ErrorCode.NONE]
    if error is None:
        return ErrorCode.NONE
    if error not in codes:
        raise ValueError(f"Kafka has no error {error!r}{_meant(error, codes)}")
    return ErrorCode[error]


def _check_numbers(rule: FaultRule) -> None:
    limits = [
        ("delay_ms", rule.delay_ms, DELAY_MS_MAX),
        ("skip", rule.skip, COUNT_MAX),
        ("times", rule.times, COUNT_MAX),
    ]
    for field, value, most in limits:
        if value is not None and not 0 <= value <= most:
            raise ValueError(f"{field}={value}: must be from 0 to {most}")
    if rule.times == 0:
        raise ValueError("times=0: this fault can never affect a request")
    if not 0 < rule.probability <= 1:
        raise ValueError(f"probability={rule.probability:g}: must be above 0 and at most 1")
    if (rule.delay_ms > 0) != (rule.kind == "delay"):
        raise ValueError("a delay fault needs a time" if rule.kind == "delay" else f"{rule.kind} has no delay")


def _check_scope(rule: FaultRule) -> None:
    request = rule.api.request()
    if rule.group is not None and not hasattr(request, "group_id"):
        raise ValueError(f"{rule.api.name} requests name no group, so group={rule.group!r} can never match")
    if rule.topic is None:
        return
    if rule.api.name in WITHOUT_TOPICS:
        raise ValueError(
            f"{rule.api.name} requests name their topics only once per session; use client_id instead of topic"
        )
    if not any(hasattr(request, name) for name in TOPIC_LISTS):
        raise ValueError(f"{rule.api.name} requests name no topic, so topic={rule.topic!r} can never match")


def _meant(wrong: object, known: Iterable[str]) -> str:
    near = nearest_name(str(wrong), known)
    return "" if near is None else f"; did you mean {near}?"
