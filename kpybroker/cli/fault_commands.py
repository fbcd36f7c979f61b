"""Reads the faults in commands of tests, and refuses those that can never match."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from kpybroker.errors import ErrorCode
from kpybroker.server.requests.faults import (
    DELAY,
    ERROR,
    KINDS,
    THROTTLE,
    FaultRule,
)
from kpybroker.similar_names import meant
from kpybroker.wire import plain
from kpybroker.wire.api import API, Audience, by_name
from kpybroker.world.faulty_disk import KINDS as DISK_KINDS
from kpybroker.world.faulty_disk import SLOW, DiskFaultRule

DISK_FIELDS = ("topic", "partition", *DISK_KINDS)
DELAY_MS_MAX = 3_600_000
COUNT_MAX = 2**31 - 1
_TYPES: Mapping[str, type] = {
    "error": str, "delay_ms": int, "client_id": str, "group": str, "topic": str, "partition": int, "skip": int,
    "times": int, "probability": float,
}  # fmt: skip


def with_number(command: Mapping[str, Any], do: Callable[[int], int]) -> int:
    """Call `do` with the number of the fault in the command. Raises ValueError if there is no such fault."""
    number = command.get("fault")
    try:
        return do(number)  # type: ignore[arg-type]  # anything else is no key
    except KeyError:
        raise ValueError(f"there is no fault {number!r}") from None


def rule_of(given: Mapping[str, Any]) -> FaultRule:
    """The rule with these fields. Raises ValueError for a rule that can never match, with the most similar
    valid name."""
    fields = dict(given)
    name, kind = fields.pop("api", None), fields.pop("kind", None)
    served = [api.name for api in API if api.audience is not Audience.BROKER]
    if name not in served:
        raise ValueError(f"no client sends {name!r} requests{meant(name, served)}")
    if kind not in KINDS:
        raise ValueError(f"there is no fault {kind!r}{meant(kind, KINDS)}")
    for field, value in fields.items():
        wanted = _TYPES.get(field)
        if wanted is None:
            raise ValueError(f"a fault has no {field!r}{meant(field, _TYPES)}")
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


def disk_rule_of(given: Mapping[str, Any]) -> DiskFaultRule:
    """The rule of a disk fault with these fields. Raises ValueError, TypeError."""
    fields = dict(given)
    kind, delay_ms = fields.pop("kind", None), fields.pop("delay_ms", 0)
    topic, partition = fields.pop("topic", None), fields.pop("partition", None)
    if kind not in DISK_KINDS:
        raise ValueError(f"there is no disk fault {kind!r}{meant(kind, DISK_KINDS)}")
    if fields:
        name = next(iter(fields))
        raise ValueError(f"a disk fault has no {name!r}{meant(name, DISK_FIELDS)}")
    if topic is not None and (not isinstance(topic, str) or not topic):
        raise ValueError(f"topic={topic!r} is not the name of a topic")
    if type(delay_ms) is not int or not 0 <= delay_ms <= DELAY_MS_MAX:
        raise ValueError(f"delay_ms={delay_ms!r}: must be from 0 to {DELAY_MS_MAX}")
    if (delay_ms > 0) != (kind == SLOW):
        raise ValueError("a slow disk needs a time" if kind == SLOW else f"a disk that is {kind} has no delay")
    if partition is not None and topic is None:
        raise ValueError(f"partition={partition!r} needs a topic")
    if partition is not None and (type(partition) is not int or not 0 <= partition <= COUNT_MAX):
        raise ValueError(f"partition={partition!r}: must be from 0 to {COUNT_MAX}")
    if topic is None:
        return DiskFaultRule(kind, delay_s=delay_ms / 1000)
    which = r"\d+" if partition is None else str(int(partition))
    return DiskFaultRule(kind, re.compile(rf"/{re.escape(topic)}-{which}/"), delay_ms / 1000)


def _code_of(error: str | None) -> ErrorCode:
    codes = [code.name for code in ErrorCode if code is not ErrorCode.NONE]
    if error is None:
        return ErrorCode.NONE
    if error not in codes:
        raise ValueError(f"Kafka has no error {error!r}{meant(error, codes)}")
    return ErrorCode[error]


def _check_numbers(rule: FaultRule) -> None:
    limits = [
        ("delay_ms", rule.delay_ms, DELAY_MS_MAX),
        ("skip", rule.skip, COUNT_MAX),
        ("times", rule.times, COUNT_MAX),
        ("partition", rule.partition, COUNT_MAX),
    ]
    for field, value, most in limits:
        if value is not None and not 0 <= value <= most:
            raise ValueError(f"{field}={value}: must be from 0 to {most}")
    if rule.times == 0:
        raise ValueError("times=0: this fault can never affect a request")
    if not 0 < rule.probability <= 1:
        raise ValueError(f"probability={rule.probability:g}: must be above 0 and at most 1")
    is_timed = rule.kind in (DELAY, THROTTLE)
    if (rule.delay_ms > 0) != is_timed:
        raise ValueError(f"a {rule.kind} fault needs a time" if is_timed else f"{rule.kind} has no delay")


def _check_scope(rule: FaultRule) -> None:
    name = rule.api.name
    if rule.group is not None and not plain.names_groups(rule.api):
        raise ValueError(f"{name} requests name no group, so group={rule.group!r} can never match")
    if rule.kind == THROTTLE and not hasattr(rule.api.response(), "throttle_time_ms"):
        raise ValueError(f"{name} responses have no throttle time")
    if rule.topic is None and rule.partition is None:
        return
    if not rule.topic and rule.partition is None:
        raise ValueError("topic='' is not the name of a topic")
    if name in plain.TOPICS_ONCE_PER_SESSION:
        raise ValueError(f"{name} requests name their topics only once per session; use client_id instead of topic")
    if not plain.names_topics(rule.api):
        raise ValueError(f"{name} requests name no topic, so topic={rule.topic!r} can never match")
    if rule.partition is not None and not plain.names_partitions(rule.api):
        raise ValueError(f"{name} requests name no partition, so partition={rule.partition} can never match")
