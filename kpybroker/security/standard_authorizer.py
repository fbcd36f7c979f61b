"""Kafka's StandardAuthorizer: decides by the ACLs of the metadata (KIP-801), and tells of refusals (`audit.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from types import MappingProxyType

from kpybroker.security.acls import Acl, AclRules
from kpybroker.security.audit import Audit, Decision, Wording, rule_of
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.security.principal import Principal

VERDICTS_MAX = 20_000
"""The most verdicts that are kept; the next one begins anew."""
NAME_LENGTH_MAX = 300
"""Verdicts about longer names are not kept."""
HOSTS_MAX = 10_000
SUPER_USER, DEFAULT_DENY, DEFAULT_ALLOW = "SuperUser", "DefaultDeny", "DefaultAllow"
"""Rules that are no ACL, in Kafka's words."""
NOT_LOADED = "AuthorizerNotReady"
ANY_NAME = "hardcode"
"""The name that Kafka asks about before it looks for any resource of a type: super users and
allow.everyone.if.no.acl.found decide by it."""
NO_ACLS: Mapping[bytes, Acl] = MappingProxyType({})


class StandardAuthorizer:
    """An `Authorizer`. Until `follow` gives it the first ACLs, only super users may do anything.

    `now` gives seconds, for the limits of the audit; `wording` is that of its lines, Kafka's by default.
    """

    def __init__(
        self,
        super_users: Iterable[str],
        *,
        allow_everyone: bool,
        now: Callable[[], float],
        wording: Wording | None = None,
    ) -> None:
        self._super_users = frozenset(super_users)
        self._otherwise = (allow_everyone, DEFAULT_ALLOW if allow_everyone else DEFAULT_DENY)
        self.audit = Audit(now, wording)
        self._acls: Mapping[bytes, Acl] | None = None
        self._rules = AclRules()
        self._verdicts: dict[tuple[object, ...], tuple[bool, Acl | str]] = {}
        self.grants: object | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether it knows the ACLs."""
        return self._acls is not None

    @property
    def kept_verdicts(self) -> int:
        """How many verdicts are kept; at most VERDICTS_MAX."""
        return len(self._verdicts)

    def follow(self, acls: Mapping[bytes, Acl]) -> None:
        """The ACLs are these now, by id. Costs a look at each, and an update of the index for those that changed."""
        before = NO_ACLS if self._acls is None else self._acls
        if acls is self._acls:
            return
        for uuid, acl in before.items():
            if acls.get(uuid) is not acl:
                self._rules.remove(acl)
        for uuid, acl in acls.items():
            if before.get(uuid) is not acl:
                self._rules.add(acl)
        self._acls = acls
        self._verdicts.clear()
        self.grants = None if self.audit.tells_grants else object()

    def look(self) -> None:
        """Once a second: follow the level of the audit's log, which decides whether grants are told."""
        if self.audit.tells_grants:
            self.grants = None
        elif self.grants is None and self.is_loaded:
            self.grants = object()

    def allows(
        self, principal: Principal, host: str, api_key: int, operation: Operation, resource: AclResource, name: str
    ) -> bool:
        """Whether a request of this principal, from this IP address, may do the operation on the resource."""
        allowed, rule = self._verdict(principal, host, operation, resource, name)
        if not allowed or self.audit.tells_grants:
            tell = self.audit.granted if allowed else self.audit.refused
            shown = rule if isinstance(rule, str) else rule_of(rule)
            tell(Decision(str(principal), host, api_key, operation, resource, name, shown))
        return allowed

    def allows_any(
        self, principal: Principal, host: str, api_key: int, operation: Operation, resource: AclResource
    ) -> bool:
        """Whether it may do the operation on at least one resource of the type."""
        allowed, rule = self._verdict(principal, host, operation, resource, None)
        if not allowed or self.audit.tells_grants:
            tell = self.audit.granted if allowed else self.audit.refused
            tell(Decision(str(principal), host, api_key, operation, resource, "any", str(rule)))
        return allowed

    def operations(
        self, principal: Principal, host: str, asked: Iterable[Operation], resource: AclResource, name: str
    ) -> int:
        """The bits of those operations that it may do on the resource. Nothing is told of them."""
        return sum(1 << each for each in asked if self._verdict(principal, host, each, resource, name)[0])

    def _verdict(
        self, principal: Principal, host: str, operation: Operation, resource: AclResource, name: str | None
    ) -> tuple[bool, Acl | str]:
        """Whether it may, and the rule. `name` None: on some resource of the type."""
        key = (principal, host, operation, resource, name)
        found = self._verdicts.get(key)
        if found is None:
            decide = self._decide_any if name is None else self._decide
            found = decide(str(principal), java_host(host), operation, resource, name or "")
            if name is None or len(name) <= NAME_LENGTH_MAX:
                if len(self._verdicts) >= VERDICTS_MAX:
                    self._verdicts.clear()
                self._verdicts[key] = found
        return found

    def _decide(
        self, principal: str, host: str, operation: Operation, resource: AclResource, name: str
    ) -> tuple[bool, Acl | str]:
        if principal in self._super_users:
            return True, SUPER_USER
        if self._acls is None:
            return False, NOT_LOADED
        verdict = self._rules.verdict(principal, host, operation, resource, name)
        if verdict.by is not None:
            return verdict.allowed, verdict.by
        return (False, DEFAULT_DENY) if verdict.is_named else self._otherwise

    def _decide_any(
        self, principal: str, host: str, operation: Operation, resource: AclResource, _name: str
    ) -> tuple[bool, Acl | str]:
        by_name = self._decide(principal, host, operation, resource, ANY_NAME)
        if by_name[0] or self._acls is None:
            return by_name[0], by_name[1] if isinstance(by_name[1], str) else rule_of(by_name[1])
        allowed = self._rules.allows_some(principal, host, operation, resource)
        return allowed, "an ACL of some resource" if allowed else DEFAULT_DENY


@lru_cache(HOSTS_MAX)
def java_host(host: str) -> str:
    """An IP address as Java prints it, which is what hosts in ACLs are compared with: 0:0:0:0:0:0:0:1 for ::1, and an
    IPv4 address for one that is mapped into IPv6."""
    try:
        address = ip_address(host)
    except ValueError:  # a transport that does not know its peer
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    groups = (address.packed[at : at + 2].hex().lstrip("0") or "0" for at in range(0, 16, 2))
    return ":".join(groups) + (f"%{address.scope_id}" if address.scope_id else "")
