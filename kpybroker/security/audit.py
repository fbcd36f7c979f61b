"""The lines about what was refused and granted, in Kafka's words, and the count of refusals. Logger:
kpybroker.authorizer."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from kpybroker.security.acls import Acl, PatternType, Permission
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.wire.api import by_key

AUDIT = "kpybroker.authorizer"
DENIED, ALLOWED = "Denied", "Allowed"
LITERAL = PatternType.LITERAL.name
"""What is asked about has this name: only ACLs have patterns."""
log = logging.getLogger(AUDIT)

MINUTE_S = 60.0
LINES_PER_ASKER = 30
"""Refusals of one principal at one address that get a line in a minute."""
LINES = 300
"""... of all of them."""
GRANTS_PER_LINE = 20
"""Of grants, this many times as many get a line."""
ASKERS_MAX = 1000
"""The most principals at addresses that are counted separately; further ones get no lines until the minute ends."""
SHOWN_MAX = 200
"""The most characters of a name in a line."""


class Lines:
    """Counts the lines of a minute. `factor`: how many times LINES there may be."""

    def __init__(self, factor: int) -> None:
        self._factor = factor
        self._since = -MINUTE_S
        self._by_asker: Counter[tuple[str, str]] = Counter()
        self._told = 0
        self.left_out = 0
        """Without a line in this minute."""

    def begin(self, now: float) -> int:
        """If a minute is over, begin the next one. Returns how many got no line in the one that is over."""
        if now - self._since < MINUTE_S:
            return 0
        left_out, self.left_out = self.left_out, 0
        self._since, self._told = now, 0
        self._by_asker.clear()
        return left_out

    def take(self, asker: tuple[str, str]) -> bool:
        """Whether there may be one more line about a principal at an address."""
        is_known = asker in self._by_asker or len(self._by_asker) < ASKERS_MAX
        of_asker = self._by_asker[asker]
        if not is_known or self._told >= LINES * self._factor or of_asker >= LINES_PER_ASKER * self._factor:
            self.left_out += 1
            return False
        self._by_asker[asker] += 1
        self._told += 1
        return True


class Decision(NamedTuple):
    """What the authorizer decided about one operation of a request, and by which rule."""

    principal: str
    host: str
    api_key: int
    operation: Operation
    resource: AclResource
    name: str
    rule: str


class Wording(Protocol):
    """How lines are written."""

    def decision(self, verdict: str, made: Decision) -> str:
        """The line of a refusal or a grant. `verdict` is DENIED or ALLOWED."""

    def left_out(self, verdict: str, count: int) -> str:
        """The line that counts those without a line."""


class Text:
    """Lines in Kafka's words."""

    def decision(self, verdict: str, made: Decision) -> str:
        where = f"{_word(made.resource)}:{LITERAL}:{shown(made.name)}"
        return (
            f"Principal = {shown(made.principal)} is {verdict} operation = {made.operation.name} from host = "
            f"{made.host} on resource = {where} for request = {_api_name(made.api_key)} based on rule {made.rule}"
        )

    def left_out(self, verdict: str, count: int) -> str:
        if verdict == ALLOWED:
            return f"{count} more grants got no line since"
        return f"{count} more refusals got no line since; kpybroker_authorizer_refusals_total counts all"


class Json:
    """Lines that are JSON objects. `wall_ms` gives the time of day, in milliseconds since the epoch."""

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
        now = datetime.fromtimestamp(self._wall_ms() / 1000, UTC)
        timestamp = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return json.dumps({"timestamp": timestamp, **facts})


class Audit:
    """`refused` counts and tells, `granted` tells if DEBUG is on: both a limited number of times a minute. `now` gives
    seconds."""

    def __init__(self, now: Callable[[], float], wording: Wording | None = None) -> None:
        self._now = now
        self._wording = wording or Text()
        self._refusals, self._grants = Lines(1), Lines(GRANTS_PER_LINE)
        self.refusals = 0
        """Since the start."""

    @property
    def tells_grants(self) -> bool:
        """Whether grants are told."""
        return log.isEnabledFor(logging.DEBUG)

    def refused(self, made: Decision) -> None:
        """A request was refused something."""
        self.refusals += 1
        self._tell(self._refusals, logging.INFO, DENIED, made)

    def granted(self, made: Decision) -> None:
        """A request was granted something."""
        self._tell(self._grants, logging.DEBUG, ALLOWED, made)

    def _tell(self, lines: Lines, level: int, verdict: str, made: Decision) -> None:
        left_out = lines.begin(self._now())
        if left_out:
            log.log(level, "%s", self._wording.left_out(verdict, left_out))
        if lines.take((made.principal, made.host)) and log.isEnabledFor(level):
            log.log(level, "%s", self._wording.decision(verdict, made))


def rule_of(acl: Acl) -> str:
    """An ACL that decided, in words."""
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
    """A text that a client has chosen, on one line of at most so many characters."""
    return _cut(text if text.isprintable() else ascii(text)[1:-1], most)


def _cut(text: str, most: int = SHOWN_MAX) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
