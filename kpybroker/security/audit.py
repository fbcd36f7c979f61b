"""The lines about what was refused and granted, in Kafka's words, and the count of refusals. Logger:
kpybroker.authorizer."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from kpybroker.security.acls import Acl, PatternType, Permission
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.wire.api import by_key

AUDIT = "kpybroker.authorizer"
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


class Audit:
    """`refused` counts and tells, `granted` tells if DEBUG is on: both a limited number of times a minute. `now` gives
    seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._refusals, self._grants = Lines(1), Lines(GRANTS_PER_LINE)
        self.refusals = 0
        """Since the start."""

    @property
    def tells_grants(self) -> bool:
        """Whether grants are told."""
        return log.isEnabledFor(logging.DEBUG)

    def refused(
        self, principal: str, host: str, api_key: int, operation: Operation, resource: AclResource, name: str, rule: str
    ) -> None:
        """A request was refused something."""
        self.refusals += 1
        left_out = self._refusals.begin(self._now())
        if left_out:
            log.info("%d more refusals got no line since; kpybroker_authorizer_refusals_total counts all", left_out)
        if self._refusals.take((principal, host)):
            log.info("%s", self._line("Denied", principal, host, api_key, operation, resource, name, rule))

    def granted(
        self, principal: str, host: str, api_key: int, operation: Operation, resource: AclResource, name: str, rule: str
    ) -> None:
        """A request was granted something."""
        left_out = self._grants.begin(self._now())
        if left_out:
            log.debug("%d more grants got no line since", left_out)
        if self._grants.take((principal, host)):
            log.debug("%s", self._line("Allowed", principal, host, api_key, operation, resource, name, rule))

    def _line(
        self,
        verdict: str,
        principal: str,
        host: str,
        api_key: int,
        operation: Operation,
        resource: AclResource,
        name: str,
        rule: str,
    ) -> str:
        where = f"{_word(resource)}:LITERAL:{shown(name)}"
        return (
            f"Principal = {shown(principal)} is {verdict} operation = {operation.name} from host = {host} "
            f"on resource = {where} for request = {_api_name(api_key)} based on rule {rule}"
        )


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
    """What a client has chosen, on one line of at most so many characters."""
    line = text if text.isprintable() else ascii(text)[1:-1]
    return line if len(line) <= most else f"{line[:most]}..."
