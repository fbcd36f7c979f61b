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
ASKERS_MAX = 1000
"""The most principals at addresses that are counted separately; further ones get no lines until the minute ends."""
SHOWN_MAX = 200
"""The most characters of a name in a line."""


class Audit:
    """`refused` counts and tells, a limited number of times a minute; `granted` tells if DEBUG is on. `now` gives
    seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = -MINUTE_S
        self._by_asker: Counter[tuple[str, str]] = Counter()
        self._told = self._untold = 0
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
        if self._now() - self._since >= MINUTE_S:
            self._begin_minute()
        asker = principal, host
        is_new = asker not in self._by_asker
        if self._told >= LINES or (is_new and len(self._by_asker) >= ASKERS_MAX):
            self._untold += 1
            return
        if self._by_asker[asker] >= LINES_PER_ASKER:
            self._untold += 1
            return
        self._by_asker[asker] += 1
        self._told += 1
        log.info("%s", self._line("Denied", principal, host, api_key, operation, resource, name, rule))

    def granted(
        self, principal: str, host: str, api_key: int, operation: Operation, resource: AclResource, name: str, rule: str
    ) -> None:
        """A request was granted something."""
        log.debug("%s", self._line("Allowed", principal, host, api_key, operation, resource, name, rule))

    def _begin_minute(self) -> None:
        if self._untold:
            log.info("%d more refusals got no line since; kpybroker_authorizer_refusals_total counts all", self._untold)
        self._since = self._now()
        self._told = self._untold = 0
        self._by_asker.clear()

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
        where = f"{_word(resource)}:LITERAL:{_shown(name)}"
        return (
            f"Principal = {_shown(principal)} is {verdict} operation = {operation.name} from host = {host} "
            f"on resource = {where} for request = {_api_name(api_key)} based on rule {rule}"
        )


def rule_of(acl: Acl) -> str:
    """An ACL that decided, in words."""
    pattern = PatternType(acl.pattern_type).name
    return (
        f"{Permission(acl.permission).name} {Operation(acl.operation).name} to {_shown(acl.principal)} from host "
        f"{_shown(acl.host)} on {_word(AclResource(acl.resource_type))}:{pattern}:{_shown(acl.resource_name)}"
    )


def _api_name(api_key: int) -> str:
    return by_key[api_key].name if api_key in by_key else str(api_key)


def _word(resource: AclResource) -> str:
    return "".join(word.capitalize() for word in resource.name.split("_"))


def _shown(text: str) -> str:
    """A name of a client's, on one line."""
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return shown if len(shown) <= SHOWN_MAX else f"{shown[:SHOWN_MAX]}..."
