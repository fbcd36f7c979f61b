"""Implements the rules of Kafka's StandardAuthorizer: which ACLs apply to a request, and the result (KIP-11, KIP-290).

Source: Apache Kafka's documentation, "Authorization and ACLs". A host is an IP address as Java prints it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from kpybroker.security.authorizer import Operation

ANY = 1
"""In a filter, this matches every code of the field."""
MATCH = 2
"""As the pattern type of a filter, this matches every pattern that covers a resource of this name: its literal name,
`*`, and prefixes."""
WILDCARD = "*"
"""As a host, this means any host. As the name of a LITERAL pattern, it means any name."""
WILDCARD_PRINCIPAL = "User:*"
"""In an ACL, this means any principal."""


class PatternType(IntEnum):
    """The types of resource patterns, with Kafka's codes."""

    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """The permission types of ACLs, with Kafka's codes."""

    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One access control entry. Records may contain codes that kpybroker does not know; an ACL with such a code matches
    nothing."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(NamedTuple):
    """The filter with which DescribeAcls and DeleteAcls select ACLs. None and ANY match everything."""

    resource_type: int = ANY
    resource_name: str | None = None
    pattern_type: int = ANY
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY

    @property
    def acl(self) -> Acl | None:
        """The only ACL that this filter can match; None if it can match several."""
        name, principal, host = self.resource_name, self.principal, self.host
        if name is None or principal is None or host is None or self.pattern_type in (ANY, MATCH):
            return None
        if ANY in (self.resource_type, self.operation, self.permission):
            return None
        return Acl(self.resource_type, name, self.pattern_type, principal, host, self.operation, self.permission)

    def matches(self, acl: Acl) -> bool:
        """Whether the filter matches an ACL."""
        return (
            self.resource_type in (ANY, acl.resource_type)
            and self.operation in (ANY, acl.operation)
            and self.permission in (ANY, acl.permission)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        name, wanted = self.resource_name, self.pattern_type
        if wanted not in (ANY, MATCH, acl.pattern_type):
            return False
        if name is None or name == acl.resource_name:
            return True
        if wanted != MATCH:
            return False
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.pattern_type == PatternType.LITERAL and acl.resource_name == WILDCARD


_IMPLYING: Mapping[int, tuple[Operation, ...]] = MappingProxyType(
    {
        Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
        Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
    }
)
"""The operations that imply an operation: an ALLOW of one of them also allows it. A DENY implies nothing."""


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in {Operation.ALL, *operations})


DENYING = MappingProxyType({operation: _bits(operation) for operation in Operation})
ALLOWING = MappingProxyType({operation: _bits(operation, *_IMPLYING.get(operation, ())) for operation in Operation})
"""For each operation, as bits, the operations whose DENY denies it (DENYING) and whose ALLOW allows it (ALLOWING)."""


class Verdict(NamedTuple):
    """The decision of the ACLs. `by` is the deciding ACL. If no ACL matches, `by` is None, and `is_named` says whether
    any principal has an ACL for the resource."""

    allowed: bool
    by: Acl | None
    is_named: bool


NO_ACL = Verdict(False, None, False)
NOT_MATCHED = Verdict(False, None, True)

Who = tuple[str, str]
"""Principal and host."""
OfPattern = dict[Who, tuple[int, int]]
"""The ACLs of one pattern: the bits of the denied and of the allowed operations, by principal and host."""
NO_RULES: Mapping[Who, tuple[int, int]] = MappingProxyType({})


class AclRules:
    """An index of ACLs.

    The cost of `verdict` grows with the number of different prefix lengths, and the cost of `allows_some` with the
    number of ACLs of the principal and of `User:*`. Neither grows with the number of all ACLs.
    """

    def __init__(self) -> None:
        self._held: Counter[Acl] = Counter()
        """The number of times that each ACL was added. The log may contain equal ACLs with different ids."""
        self._patterns: dict[tuple[int, int], dict[str, OfPattern]] = {}
        """The patterns of each resource type and pattern type, by name."""
        self._lengths: dict[int, Counter[int]] = {}
        """The number of PREFIXED patterns of each length, by resource type."""
        self._sorted_lengths: dict[int, tuple[int, ...]] = {}
        """The lengths of PREFIXED patterns in ascending order, by resource type."""
        self._of: dict[tuple[int, Who], dict[tuple[int, str], None]] = {}
        """The types and names of the patterns, by resource type, principal and host."""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, acl: Acl) -> None:
        """Add an ACL."""
        self._held[acl] += 1
        if self._held[acl] == 1:
            self._set(acl, is_there=True)

    def remove(self, acl: Acl) -> None:
        """Remove an ACL that was added. Raises KeyError."""
        count = self._held[acl] - 1
        if count < 0:
            raise KeyError(acl)
        if count:
            self._held[acl] = count
        else:
            del self._held[acl]
            self._set(acl, is_there=False)

    def _set(self, acl: Acl, *, is_there: bool) -> None:
        kind, name, who = (acl.resource_type, acl.pattern_type), acl.resource_name, (acl.principal, acl.host)
        patterns = self._patterns.setdefault(kind, {})
        if name not in patterns:
            patterns[name] = {}
            self._count_length(acl, 1)
        rules = patterns[name]
        denied, allowed = rules.get(who, (0, 0))
        bit = _bit_of(acl)
        if acl.permission == Permission.ALLOW:
            allowed = allowed | bit if is_there else allowed & ~bit
        else:
            denied = denied | bit if is_there else denied & ~bit
        if denied or allowed:
            if who not in rules:
                self._of.setdefault((acl.resource_type, who), {})[kind[1], name] = None
            rules[who] = denied, allowed
            return
        del rules[who]
        theirs = self._of[acl.resource_type, who]
        del theirs[kind[1], name]
        if not theirs:
            del self._of[acl.resource_type, who]
        if not rules:
            del patterns[name]
            self._count_length(acl, -1)
        if not patterns:
            del self._patterns[kind]

    def _count_length(self, acl: Acl, change: int) -> None:
        """Count a PREFIXED pattern that was added (`change` 1) or removed (-1)."""
        if acl.pattern_type != PatternType.PREFIXED:
            return
        lengths = self._lengths.setdefault(acl.resource_type, Counter())
        length = len(acl.resource_name)
        is_known = length in lengths
        lengths[length] += change
        if is_known and lengths[length]:
            return
        if not lengths[length]:
            del lengths[length]
        if lengths:
            self._sorted_lengths[acl.resource_type] = tuple(sorted(lengths))
        else:
            del self._lengths[acl.resource_type], self._sorted_lengths[acl.resource_type]

    def meeting(self, resource_type: int, name: str) -> Iterator[tuple[int, str, OfPattern]]:
        """The patterns that cover a resource: their types, names and ACLs."""
        literal = self._patterns.get((resource_type, PatternType.LITERAL), {})
        for each in (name, WILDCARD) if name != WILDCARD else (name,):
            if each in literal:
                yield PatternType.LITERAL, each, literal[each]
        prefixed = self._patterns.get((resource_type, PatternType.PREFIXED))
        if prefixed:
            longest = len(name)
            for length in self._sorted_lengths[resource_type]:
                if length > longest:
                    break
                prefix = name[:length]
                if prefix in prefixed:
                    yield PatternType.PREFIXED, prefix, prefixed[prefix]

    def verdict(self, principal: str, host: str, operation: Operation, resource_type: int, name: str) -> Verdict:
        """The decision of the ACLs on an operation on a resource. A DENY takes precedence over any ALLOW."""
        asking = _asking(principal, host)
        denying, allowing = DENYING[operation], ALLOWING[operation]
        found = NO_ACL
        for pattern_type, pattern, rules in self.meeting(resource_type, name):
            if not found.is_named:
                found = NOT_MATCHED
            for who in asking:
                denied, allowed = rules.get(who, (0, 0))
                if denied & denying:
                    by = _decisive(denied & denying, operation)
                    acl = Acl(resource_type, pattern, pattern_type, *who, by, Permission.DENY)
                    return Verdict(False, acl, True)
                if allowed & allowing and not found.allowed:
                    by = _decisive(allowed & allowing, operation)
                    acl = Acl(resource_type, pattern, pattern_type, *who, by, Permission.ALLOW)
                    found = Verdict(True, acl, True)
        return found

    def allows_some(self, principal: str, host: str, operation: Operation, resource_type: int) -> bool:
        """Whether there is an ALLOW of the operation that no DENY covers. A DENY covers an ALLOW if it is for `*`, for
        the same name, or for the same or a shorter prefix. Implied operations do not count (Kafka's
        authorizeByResourceType)."""
        literal = self._patterns.get((resource_type, PatternType.LITERAL), {})
        prefixed = self._patterns.get((resource_type, PatternType.PREFIXED), {})
        asking, bits = _asking(principal, host), DENYING[operation]
        if _denies(literal.get(WILDCARD, NO_RULES), asking, bits):
            return False
        if _allows(literal.get(WILDCARD, NO_RULES), asking, bits):
            return True
        lengths = self._sorted_lengths.get(resource_type, ())
        return any(
            pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
            and self._patterns[resource_type, pattern_type][name][who][1] & bits
            and not (pattern_type == PatternType.LITERAL and _denies(literal[name], asking, bits))
            and not any(
                _denies(prefixed.get(name[:length], NO_RULES), asking, bits)
                for length in lengths
                if length <= len(name)
            )
            for who, pattern_type, name in self.patterns_of(asking, resource_type)
        )

    def patterns_of(self, asking: Sequence[Who], resource_type: int) -> Iterator[tuple[Who, int, str]]:
        """The patterns for which these principals and hosts have ACLs, as (principal and host, pattern type, name)."""
        for who in asking:
            for pattern_type, name in self._of.get((resource_type, who), ()):
                yield who, pattern_type, name


def _bit_of(acl: Acl) -> int:
    """The bit of the ACL's operation. An ACL with an unknown operation or permission decides nothing, but its resource
    still counts as named. So it has a bit that no operation has."""
    if acl.operation in DENYING and acl.permission in (Permission.DENY, Permission.ALLOW):
        return 1 << acl.operation
    return 1 << (256 + acl.permission % 256 * 256 + acl.operation % 256)


def _asking(principal: str, host: str) -> tuple[Who, ...]:
    """The principals and hosts whose ACLs apply to this principal and host."""
    return (
        (principal, host),
        (principal, WILDCARD),
        (WILDCARD_PRINCIPAL, host),
        (WILDCARD_PRINCIPAL, WILDCARD),
    )


def _denies(rules: Mapping[Who, tuple[int, int]], asking: tuple[Who, ...], bits: int) -> bool:
    return any(who in rules and rules[who][0] & bits for who in asking)


def _allows(rules: Mapping[Who, tuple[int, int]], asking: tuple[Who, ...], bits: int) -> bool:
    return any(who in rules and rules[who][1] & bits for who in asking)


def _decisive(bits: int, operation: Operation) -> int:
    """The operation of the deciding ACL: the requested operation, ALL, or an operation that implies the requested
    one."""
    for each in (operation, Operation.ALL):
        if bits >> each & 1:
            return each
    return bits.bit_length() - 1
