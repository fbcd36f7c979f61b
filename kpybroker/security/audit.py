"""Logs refused and granted operations in Kafka's wording, to the logger kpybroker.authorizer, and counts refusals."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from kpybroker.security.acls import Acl, PatternType, Permission
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.wire.api import by_key

AUDIT = "kpybroker.authorizer"
DENIED, ALLOWED = "Denied", "Allowed"
LITERAL = PatternType.LITERAL.name
"""The pattern type that is logged for requests. Requests name resources; only ACLs have other pattern types."""
log = logging.getLogger(AUDIT)

MINUTE_S = 60.0
LINES_PER_ASKER = 30
"""The most refusals that are logged per minute for one principal at one address."""
LINES = 300
"""The most refusals that are logged per minute in all."""
GRANTS_PER_LINE = 20
"""For grants, both limits are multiplied by this."""
ASKERS_MAX = 1000
"""The most pairs of principal and address that are counted in a minute. Nothing is logged for pairs beyond this."""
SHOWN_MAX = 200
"""The most characters of a name in a line."""


class Lines:
    """Counts the lines that are logged in a minute. The limits LINES and LINES_PER_ASKER are multiplied by `factor`."""

    def __init__(self, factor: int) -> None:
        self._factor = factor
        self._since = -MINUTE_S
        self._by_asker: Counter[tuple[str, str]] = Counter()
        self._told = 0
        self.left_out = 0
        """Decisions that were not logged in this minute."""

    def begin(self, now: float) -> int:
        """If a minute is over, begin the next one. Returns how many decisions were not logged in the previous one."""
        if now - self._since < MINUTE_S:
            return 0
        left_out, self.left_out = self.left_out, 0
        self._since, self._told = now, 0
        self._by_asker.clear()
        return left_out

    def take(self, asker: tuple[str, str]) -> bool:
        """Count a line about a principal at an address. Returns whether it may be logged."""
        is_known = asker in self._by_asker or len(self._by_asker) < ASKERS_MAX
        of_asker = self._by_asker[asker]
        if not is_known or self._told >= LINES * self._factor or of_asker >= LINES_PER_ASKER * self._factor:
            self.left_out += 1
            return False
        self._by_asker[asker] += 1
        self._told += 1
        return True


class Decision(NamedTuple):
    """The authorizer's decision on one operation of a request, and the deciding rule."""

    principal: str
    host: str
    api_key: int
    operation: Operation
    resource: AclResource
    name: str
    rule: str


class Wording(Protocol):
    """The format of the lines."""

    def decision(self, verdict: str, made: Decision) -> str:
        """The line of a refusal or a grant. `verdict` is DENIED or ALLOWED."""

    def left_out(self, verdict: str, count: int) -> str:
        """The line that says how many decisions were not logged."""


class Text:
    """Lines in Kafka's wording."""

    def decision(self, verdict: str, made: Decision) -> str:
        where = f"{_word(made.resource)}:{LITERAL}:{shown(made.name)}"
        return (
            f"Principal = {shown(made.principal)} is {verdict} operation = {made.operation.name} from host = "
            f"{made.host} on resource = {where} for request = {_api_name(made.api_key)} based on rule {made.rule}"
        )

    def left_out(self, verdict: str, count: int) -> str:
        if verdict == ALLOWED:
            return f"{count} more grants were not logged"
        return f"{count} more refusals were not logged; kpybroker_authorizer_refusals_total counts all of them"


class Json:
    """Lines that are JSON objects. `wall_ms` returns the time of day, in milliseconds since the epoch."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms

    def decision(self, verdict: str, made: Decision) -> str:
        facts = {
            "decision": verdict,
            "principal": _cut(made.principal),
            "host": made.host,
            "operation": made.operation.name,
            "resourceType": _word(made.resource),
            "patternType": LITERAL,
            "resourceName": _cut(made.name),
            "request": _api_name(made.api_key),
            "rule": made.rule,
        }
        return self._line(facts)

    def left_out(self, verdict: str, count: int) -> str:
        return self._line({"decision": verdict, "leftOut": count})

    def _line(self, facts: Mapping[str, object]) -> str:
        import json  # a broker without an audit log starts without these
        from datetime import UTC, datetime

        now = datetime.fromtimestamp(self._wall_ms() / 1000, UTC)
        timestamp = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return json.dumps({"timestamp": timestamp, **facts})


class Audit:
    """`refused` counts refusals and logs them; `granted` logs grants if DEBUG is on. The number of lines per minute is
    limited. `now` returns seconds."""

    def __init__(self, now: Callable[[], float], wording: Wording | None = None) -> None:
        self._now = now
        self._wording = wording or Text()
        self._refusals, self._grants = Lines(1), Lines(GRANTS_PER_LINE)
        self.refusals = 0
        """The number of refusals since the start."""

    @property
    def tells_grants(self) -> bool:
        """Whether grants are logged."""
        return log.isEnabledFor(logging.DEBUG)

    def refused(self, made: Decision) -> None:
        """Count and log a refused operation."""
        self.refusals += 1
        self._tell(self._refusals, logging.INFO, DENIED, made)

    def granted(self, made: Decision) -> None:
        """Log a granted operation if grants are logged."""
        self._tell(self._grants, logging.DEBUG, ALLOWED, made)

    def _tell(self, lines: Lines, level: int, verdict: str, made: Decision) -> None:
        left_out = lines.begin(self._now())
        if left_out:
            log.log(level, "%s", self._wording.left_out(verdict, left_out))
        if lines.take((made.principal, made.host)) and log.isEnabledFor(level):
            log.log(level, "%s", self._wording.decision(verdict, made))


def rule_of(acl: Acl) -> str:
    """The text for a deciding ACL."""
    pattern = PatternType(acl.pattern_type).name
    return (
        f"{Permission(acl.permission).name} {Operation(acl.operation).name} to {shown(acl.principal)} from host "
        f"{shown(acl.host)} on {_word(AclResource(acl.resource_type))}:{pattern}:{shown(acl.resource_name)}"
    )


def _api_name(api_key: int) -> str:
    return by_key[api_key].name if api_key in by_key else str(api_key)


def _word(resource: AclResource) -> str:
    return "".join(word.capitalize() for word in resource.name.split("_"))


def shown(text: str, most: int = SHOWN_MAX) -> str:
    """A text from a client, escaped onto one line and cut after `most` characters."""
    return _cut(text if text.isprintable() else ascii(text)[1:-1], most)


def _cut(text: str, most: int = SHOWN_MAX) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
