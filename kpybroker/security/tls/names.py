"""Derives the principal of a client certificate from its subject, with `ssl.principal.mapping.rules`.

Source: KIP-371, RFC 2253.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from kpybroker.errors import ConfigError
from kpybroker.security.principal import ANONYMOUS, USER, Principal
from kpybroker.security.tls.stores import unreadable

if TYPE_CHECKING:
    from cryptography.x509 import NameAttribute

SETTING = "ssl.principal.mapping.rules"
RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(,|$)", re.DOTALL)
GROUP = re.compile(r"\\(.)|\$(\d)", re.DOTALL)
RULES_MAX = 100
SHORT_NAMES = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attribute types that have a name in RFC 2253. Java writes other types as numbers, with the value in
hexadecimal."""


class MappingRule(NamedTuple):
    """A regular expression for the whole name, and its replacement. If `pattern` is None, the name stays unchanged."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str
    """`L` or `U` if the result is converted to lower or upper case."""

    def apply(self, name: str) -> str | None:
        """The short name; None if the rule does not match."""
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        short = GROUP.sub(lambda part: part[1] or found[int(part[2])] or "", self.replacement)
        return short.lower() if self.case == "L" else short.upper() if self.case == "U" else short


def parse_rules(text: str) -> tuple[MappingRule, ...]:
    """Parse rules separated by commas: `DEFAULT` or `RULE:pattern/replacement/[L|U]`. Raises ConfigError."""
    rules: list[MappingRule] = []
    at = 0
    while at < len(text) or not rules:
        found = RULE.match(text, at)
        if found is None or len(rules) == RULES_MAX:
            raise ConfigError(
                f"{SETTING}: cannot read {text[at : at + 100]!r}: write at most {RULES_MAX} of DEFAULT or "
                "RULE:pattern/replacement/[L|U], separated by commas"
            )
        rules.append(_rule(found))
        at = found.end()
    return tuple(rules)


def _rule(found: re.Match[str]) -> MappingRule:
    if found[1]:
        return MappingRule(None, "", "")
    try:
        pattern = re.compile(found[2])
    except re.error as error:
        raise ConfigError(
            f"{SETTING}: {found[2][:100]!r} is not a regular expression for Python ({error}); write it without "
            "Java's own syntax"
        ) from None
    groups = [int(part[2]) for part in GROUP.finditer(found[3]) if part[2]]
    if max(groups, default=0) > pattern.groups:
        raise ConfigError(f"{SETTING}: {found[3][:100]!r} names a group that {found[2][:100]!r} does not have")
    return MappingRule(pattern, found[3], found[4])


def principal_of(certificate: bytes | None, rules: tuple[MappingRule, ...]) -> Principal | None:
    """The principal of a client with this certificate (DER); ANONYMOUS for a client without a certificate. None if no
    rule matches the subject, or if the package cryptography cannot parse it, although OpenSSL accepted it."""
    if certificate is None:
        return ANONYMOUS
    try:
        name = subject_of(certificate)
    except unreadable():
        return None
    for rule in rules:
        short = rule.apply(name)
        if short is not None:
            return Principal(USER, short)
    return None


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate (DER) in the form of Java's X500Principal: RFC 2253, with the last part first."""
    from cryptography.x509 import load_der_x509_certificate

    subject = load_der_x509_certificate(certificate).subject
    return ",".join("+".join(_attribute(each) for each in part) for part in reversed(subject.rdns))


def _attribute(attribute: NameAttribute[Any]) -> str:
    oid = attribute.oid.dotted_string
    if oid in SHORT_NAMES:
        return attribute.rfc4514_string({attribute.oid: SHORT_NAMES[oid]})
    return f"{oid}=#{_value_in_der(attribute).hex()}"


def _value_in_der(attribute: NameAttribute[Any]) -> bytes:
    """The value of an attribute in DER. It is taken from a Name that has only this attribute: a SEQUENCE of a SET of a
    SEQUENCE of type and value (RFC 5280)."""
    from cryptography.x509 import Name

    encoded = Name([attribute]).public_bytes()
    at = 0
    for _ in range(3):
        at += _head_bytes(encoded, at)
    at += _head_bytes(encoded, at) + encoded[at + 1]  # the type, which is shorter than 128 bytes
    return encoded[at:]


def _head_bytes(encoded: bytes, at: int) -> int:
    """The size of a tag and its length field."""
    return 2 + (encoded[at + 1] & 0x7F if encoded[at + 1] & 0x80 else 0)
