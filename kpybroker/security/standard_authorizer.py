"""Implements Kafka's StandardAuthorizer: decides by the ACLs in the metadata (KIP-801), and logs refusals
(`audit.py`)."""

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
"""The most verdicts that are cached. At the limit, the cache is emptied."""
NAME_LENGTH_MAX = 300
"""Verdicts about longer names are not cached."""
HOSTS_MAX = 10_000
SUPER_USER, DEFAULT_DENY, DEFAULT_ALLOW = "SuperUser", "DefaultDeny", "DefaultAllow"
"""Kafka's names for the rules that are not ACLs."""
NOT_LOADED = "AuthorizerNotReady"
ANY_NAME = "hardcode"
"""The resource name that Kafka checks first when a request needs permission on any resource of a type. The check
succeeds for super users, for ACLs of `*`, and if allow.everyone.if.no.acl.found is set."""
NO_ACLS: Mapping[bytes, Acl] = MappingProxyType({})
NO_TOPICS: Mapping[str, str] = MappingProxyType({})


class StandardAuthorizer:
    """An `Authorizer`. Until `follow` is first called with ACLs, only super users may do anything.

    `now` returns seconds, for the rate limits of the audit log. `wording` formats the lines of the log, by default as
    in Kafka.
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
        self._topics = NO_TOPICS
        self._rules = AclRules()
        self._verdicts: dict[tuple[object, ...], tuple[bool, Acl | str]] = {}
        self.grants: object | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether the authorizer has received the ACLs."""
        return self._acls is not None

    @property
    def kept_verdicts(self) -> int:
        """The number of cached verdicts, at most VERDICTS_MAX."""
        return len(self._verdicts)

    def follow(self, acls: Mapping[bytes, Acl], topics: Mapping[str, str] = NO_TOPICS) -> None:
        """Use these ACLs, by id. Compares every ACL, and updates the index for the changed ones. `topics`: for some
        names of topics, the topic whose ACLs apply to them instead of their own."""
        before = NO_ACLS if self._acls is None else self._acls
        if acls is self._acls and topics == self._topics:
            return
        self._topics = topics
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
        """Read the level of the audit logger, which decides whether grants are logged. Called once a second."""
        if self.audit.tells_grants:
            self.grants = None
        elif self.grants is None and self.is_loaded:
            self.grants = object()

    def allows(
        self, principal: Principal, host: str, api_key: int, operation: Operation, resource: AclResource, name: str
    ) -> bool:
        """Whether this principal, from this IP address, may perform the operation on the resource."""
        allowed, rule = self._verdict(principal, host, operation, resource, name)
        if not allowed or self.audit.tells_grants:
            tell = self.audit.granted if allowed else self.audit.refused
            shown = rule if isinstance(rule, str) else rule_of(rule)
            tell(Decision(str(principal), host, api_key, operation, resource, name, shown))
        return allowed

    def allows_any(
        self, principal: Principal, host: str, api_key: int, operation: Operation, resource: AclResource
    ) -> bool:
        """Whether this principal, from this IP address, may perform the operation on at least one resource of the
        type."""
        allowed, rule = self._verdict(principal, host, operation, resource, None)
        if not allowed or self.audit.tells_grants:
            tell = self.audit.granted if allowed else self.audit.refused
            tell(Decision(str(principal), host, api_key, operation, resource, "any", str(rule)))
        return allowed

    def operations(
        self, principal: Principal, host: str, asked: Iterable[Operation], resource: AclResource, name: str
    ) -> int:
        """The bits of those `asked` operations that the principal may perform on the resource. Nothing is logged."""
        return sum(1 << each for each in asked if self._verdict(principal, host, each, resource, name)[0])

    def _verdict(
        self, principal: Principal, host: str, operation: Operation, resource: AclResource, name: str | None
    ) -> tuple[bool, Acl | str]:
        """Whether the operation is allowed, and the deciding rule.

        If `name` is None, this is whether the operation is allowed on at least one resource of the type.
        """
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
        if resource is AclResource.TOPIC:
            name = self._topics.get(name, name)
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
    """An IP address as Java prints it, for comparison with the hosts in ACLs: 0:0:0:0:0:0:0:1 for ::1, and the IPv4
    address for an address that is mapped into IPv6."""
    try:
        address = ip_address(host)
    except ValueError:  # the transport has no peer address
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    groups = (address.packed[at : at + 2].hex().lstrip("0") or "0" for at in range(0, 16, 2))
    return ":".join(groups) + (f"%{address.scope_id}" if address.scope_id else "")
