"""Tests of subjects in Java's format, of mapping rules, and of Java's names for cipher suites."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from kpybroker.errors import ConfigError
from kpybroker.security.tls.names import RULES_MAX, parse_rules, principal_of, subject_of
from kpybroker.security.tls.suites import Suites, suites
from tests.certificates import sign


def der(*parts: tuple[x509.ObjectIdentifier, str]) -> bytes:
    name = x509.Name([x509.NameAttribute(oid, text) for oid, text in parts])
    return sign("", sign("authority"), name=name).certificate.public_bytes(Encoding.DER)


ALICE = der((NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, "A, B"), (NameOID.COMMON_NAME, "Alice"))


def test_a_subject_begins_with_its_last_part_and_is_escaped() -> None:
    assert subject_of(ALICE) == r"CN=Alice,O=A\, B,C=DE"


def test_attribute_types_without_a_java_name_are_written_as_oids_with_hexadecimal_values() -> None:
    found = subject_of(der((NameOID.EMAIL_ADDRESS, "a@b.c"), (NameOID.COMMON_NAME, "é")))
    assert found == f"CN=é,1.2.840.113549.1.9.1=#1605{b'a@b.c'.hex()}"


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("DEFAULT", r"CN=Alice,O=A\, B,C=DE"),
        (r"RULE:^CN=(.*?),.*$/$1/", "Alice"),
        (r"RULE:^CN=(.*?),.*$/$1@home/L", "alice@home"),
        (r"RULE:^CN=(.*?),.*C=(.*)$/$2-$1/U", "DE-ALICE"),
        (r"RULE:^OU=.*$/x/, RULE:^CN=(.*?),O=.*$/$1/ , DEFAULT", "Alice"),
        (r"RULE:CN/x/,DEFAULT", r"CN=Alice,O=A\, B,C=DE"),
        (r"RULE:^OU=.*$/x/", None),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_counts(rules: str, name: str | None) -> None:
    found = principal_of(ALICE, parse_rules(rules))
    assert (found and str(found)) == (None if name is None else f"User:{name}")


def test_a_certificate_that_cannot_be_read_is_nobodys() -> None:
    whole = sign("alice").certificate.public_bytes(Encoding.DER)
    version = whole.index(b"\xa0\x03\x02\x01\x02")
    for broken in (whole[:100], whole[: version + 4] + b"\x46" + whole[version + 5 :]):
        assert principal_of(broken, parse_rules("DEFAULT")) is None


def test_without_a_certificate_a_client_is_anonymous() -> None:
    assert str(principal_of(None, parse_rules("RULE:x/y/"))) == "User:ANONYMOUS"


@pytest.mark.parametrize(
    "rules", ["", "default", "RULE:a", "RULE:a/b", "RULE:a/b/X", "RULE:(/b/", "RULE:(?<n>a)/$1/", "RULE:a/$1/"]
)
def test_rules_that_cannot_be_obeyed_are_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        parse_rules(rules)


def test_there_is_a_limit_to_rules() -> None:
    assert len(parse_rules(",".join(["DEFAULT"] * RULES_MAX))) == RULES_MAX
    with pytest.raises(ConfigError, match=f"at most {RULES_MAX}"):
        parse_rules(",".join(["DEFAULT"] * (RULES_MAX + 1)))


NEWEST = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"]
OLDER = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"


def test_cipher_suites_of_one_version_exclude_the_other_version() -> None:
    both = ["TLSv1.2", "TLSv1.3"]
    assert suites(both, []) == Suites("TLSv1.2", "TLSv1.3", "")
    assert suites(both, [OLDER]) == Suites("TLSv1.2", "TLSv1.2", "ECDHE-RSA-AES128-GCM-SHA256")
    assert suites(both, NEWEST) == Suites("TLSv1.3", "TLSv1.3", "")
    with pytest.raises(ConfigError, match="cannot be chosen individually"):
        suites(both, NEWEST[:1])
    with pytest.raises(ConfigError, match="none of them belongs"):
        suites(["TLSv1.3"], [OLDER])
