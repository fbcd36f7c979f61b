"""Tests of StandardAuthorizer: decisions before the ACLs are loaded, hosts in Java's format, cached decisions, and the
audit log."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.security import audit, standard_authorizer
from kpybroker.security.acls import Acl, PatternType, Permission
from kpybroker.security.authorizer import CLUSTER_NAME, AclResource, Operation
from kpybroker.security.principal import ANONYMOUS, Principal
from kpybroker.security.standard_authorizer import StandardAuthorizer, java_host
from tests.security.test_acls import acls, reference

TOPIC, CLUSTER = AclResource.TOPIC, AclResource.CLUSTER
READ, WRITE, DESCRIBE, CREATE = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.CREATE
ANN, BOB = Principal("User", "ann"), Principal("User", "bob")
HERE = "127.0.0.1"
FETCH = 1
LOGGER = "kpybroker.authorizer"


class Clock:
    """A clock in seconds, which the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def authorizer(
    *super_users: str,
    allow_everyone: bool = False,
    clock: Clock | None = None,
    wording: audit.Wording | None = None,
) -> StandardAuthorizer:
    return StandardAuthorizer(super_users, allow_everyone=allow_everyone, now=clock or Clock(), wording=wording)


def acl(
    name: str = "t",
    operation: int = READ,
    permission: int = Permission.ALLOW,
    pattern: int = PatternType.LITERAL,
    principal: str = "User:ann",
    host: str = "*",
    resource: int = TOPIC,
) -> Acl:
    return Acl(resource, name, pattern, principal, host, operation, permission)


def by_id(*held: Acl) -> dict[bytes, Acl]:
    return {bytes([number]) * 16: each for number, each in enumerate(held)}


def may(of: StandardAuthorizer, who: Principal = ANN, operation: Operation = READ, name: str = "t") -> bool:
    return of.allows(who, HERE, FETCH, operation, TOPIC, name)


def test_until_the_acls_are_known_only_super_users_are_allowed() -> None:
    one = authorizer("User:ann", allow_everyone=True)
    assert not one.is_loaded
    assert may(one)
    assert not may(one, BOB)
    assert not one.allows_any(BOB, HERE, FETCH, WRITE, TOPIC)
    assert one.allows_any(ANN, HERE, FETCH, WRITE, TOPIC)
    assert one.operations(BOB, HERE, [READ], TOPIC, "t") == 0
    one.follow({})
    assert one.is_loaded
    assert may(one, BOB)


def test_a_super_user_is_not_bound_by_denials() -> None:
    one = authorizer("User:ann")
    one.follow(by_id(acl(permission=Permission.DENY, operation=Operation.ALL)))
    assert may(one)
    assert one.allows_any(ANN, HERE, FETCH, READ, TOPIC)
    assert not may(authorizer("user:ann", "Group:ann"))


@pytest.mark.parametrize("allow_everyone", [False, True])
def test_the_first_acl_of_a_resource_denies_everyone_else(*, allow_everyone: bool) -> None:
    one = authorizer(allow_everyone=allow_everyone)
    one.follow({})
    assert may(one, BOB) == allow_everyone
    for each in (acl(), acl("*"), acl("", pattern=PatternType.PREFIXED)):
        one.follow(by_id(each))
        assert not may(one, BOB)
        assert may(one, ANN)
    one.follow(by_id(acl("other")))
    assert may(one, BOB) == allow_everyone


def test_a_change_takes_effect_at_once() -> None:
    one = authorizer()
    one.follow(by_id(acl()))
    assert may(one)
    one.follow(by_id(acl(), acl(permission=Permission.DENY)))
    assert not may(one)
    one.follow(by_id(acl()))
    assert may(one)
    one.follow({})
    assert not may(one)


@given(st.lists(st.lists(acls, max_size=6), max_size=4), st.sampled_from(Operation))
def test_after_any_changes_it_decides_like_a_new_one(changes: list[list[Acl]], operation: Operation) -> None:
    one = authorizer(allow_everyone=True)
    one.follow({})
    held: list[Acl] = []
    for held in changes:
        one.follow(by_id(*held))
        said, is_named = reference(held, ("User:a", "1.1.1.1"), operation, TOPIC, "ab")
        wanted = not is_named if said is None else said
        assert one.allows(Principal("User", "a"), "1.1.1.1", FETCH, operation, TOPIC, "ab") == wanted


@pytest.mark.parametrize(
    ("host", "printed"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8::00ff", "2001:db8:0:0:0:0:0:ff"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
        ("nowhere", "nowhere"),
    ],
)
def test_hosts_are_written_as_in_java(host: str, printed: str) -> None:
    assert java_host(host) == printed
    one = authorizer()
    one.follow(by_id(acl(host=printed)))
    assert one.allows(ANN, host, FETCH, READ, TOPIC, "t")
    one.follow(by_id(acl(host="10.1.2.4")))
    assert not one.allows(ANN, host, FETCH, READ, TOPIC, "t")


def test_the_bits_of_operations() -> None:
    one = authorizer()
    one.follow(by_id(acl(), acl(operation=CREATE), acl(operation=CREATE, permission=Permission.DENY)))
    assert one.operations(ANN, HERE, [READ, WRITE, CREATE, DESCRIBE], TOPIC, "t") == 1 << READ | 1 << DESCRIBE
    assert not one.audit.refusals, "nobody was refused"


def test_cached_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_authorizer, "VERDICTS_MAX", 3)
    one = authorizer()
    one.follow(by_id(acl(), acl("x" * 300), acl("x" * 301)))
    for number in range(10):
        assert not may(one, name=f"t{number}")
        assert one.kept_verdicts <= 3
    assert may(one)
    kept = one.kept_verdicts
    assert may(one, name="x" * 301)
    assert one.kept_verdicts == kept, "a long name is not cached"
    assert may(one, name="x" * 300)
    assert one.kept_verdicts == kept + 1


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, LOGGER)
    return caplog


def test_a_refusal_is_logged_in_kafkas_words(lines: pytest.LogCaptureFixture) -> None:
    one = authorizer("User:root")
    one.follow(by_id(acl("t", permission=Permission.DENY, pattern=PatternType.PREFIXED), acl("u", principal="User:x")))
    assert not may(one)
    assert not may(one, BOB)
    assert not may(one, BOB, name="a\nb")
    assert not one.allows(BOB, HERE, 3, DESCRIBE, CLUSTER, CLUSTER_NAME)
    assert not one.allows_any(BOB, HERE, 22, WRITE, TOPIC)
    assert may(one, Principal("User", "root"))
    assert [line.getMessage() for line in lines.records] == [
        "Principal = User:ann is Denied operation = READ from host = 127.0.0.1 on resource = Topic:LITERAL:t for "
        "request = Fetch based on rule DENY READ to User:ann from host * on Topic:PREFIXED:t",
        "Principal = User:bob is Denied operation = READ from host = 127.0.0.1 on resource = Topic:LITERAL:t for "
        "request = Fetch based on rule DefaultDeny",
        "Principal = User:bob is Denied operation = READ from host = 127.0.0.1 on resource = Topic:LITERAL:a\\nb for "
        "request = Fetch based on rule DefaultDeny",
        "Principal = User:bob is Denied operation = DESCRIBE from host = 127.0.0.1 on resource = "
        "Cluster:LITERAL:kafka-cluster for request = Metadata based on rule DefaultDeny",
        "Principal = User:bob is Denied operation = WRITE from host = 127.0.0.1 on resource = Topic:LITERAL:any for "
        "request = InitProducerId based on rule DefaultDeny",
    ]
    assert one.audit.refusals == 5


def test_grants_are_logged_on_request(lines: pytest.LogCaptureFixture) -> None:
    one = authorizer("User:root")
    one.follow(by_id(acl(operation=WRITE)))
    assert may(one, operation=DESCRIBE)
    assert not lines.records
    lines.set_level(logging.DEBUG, LOGGER)
    assert may(one, operation=DESCRIBE)
    assert may(one, Principal("User", "root"))
    assert one.allows_any(ANN, HERE, 22, WRITE, TOPIC)
    assert [line.getMessage().partition("based on rule ")[2] for line in lines.records] == [
        "ALLOW WRITE to User:ann from host * on Topic:LITERAL:t",
        "SuperUser",
        "an ACL of some resource",
    ]
    assert all("is Allowed operation" in line.getMessage() for line in lines.records)


def test_a_line_is_a_json_object_on_request(lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object has the same fields for refusals, for allowed operations, and for the number of omitted lines. Any
    name is on one line, and short."""
    monkeypatch.setattr(audit, "LINES_PER_ASKER", 3)
    lines.set_level(logging.DEBUG, LOGGER)
    clock = Clock()
    one = authorizer(clock=clock, wording=audit.Json(lambda: 1_700_000_000_123))
    one.follow(by_id(acl(operation=WRITE)))
    assert may(one, operation=WRITE)
    assert not may(one, BOB, name='a"\n\u2028{' + "n" * 30_000)
    assert not one.allows(BOB, HERE, 3, DESCRIBE, CLUSTER, CLUSTER_NAME)
    for _ in range(3):
        assert not one.allows_any(BOB, HERE, 22, WRITE, TOPIC)
    clock.now += 60
    assert not may(one, BOB)
    texts = [line.getMessage() for line in lines.records]
    assert all(text.isascii() and len(text) < 1000 and text.splitlines() == [text] for text in texts)
    granted, named, on_cluster, on_any, left_out, _ = (json.loads(text) for text in texts)
    assert granted == {
        "timestamp": "2023-11-14T22:13:20.123Z",
        "decision": "Allowed",
        "principal": "User:ann",
        "host": "127.0.0.1",
        "operation": "WRITE",
        "resourceType": "Topic",
        "patternType": "LITERAL",
        "resourceName": "t",
        "request": "Fetch",
        "rule": "ALLOW WRITE to User:ann from host * on Topic:LITERAL:t",
    }
    assert named["resourceName"].startswith('a"\n\u2028{nnn')
    assert (named["decision"], named["rule"]) == ("Denied", "DefaultDeny")
    assert (on_cluster["resourceType"], on_cluster["resourceName"]) == ("Cluster", "kafka-cluster")
    assert (on_any["resourceName"], on_any["request"]) == ("any", "InitProducerId")
    assert left_out == {"timestamp": granted["timestamp"], "decision": "Denied", "leftOut": 2}


def test_log_lines_are_bounded_and_counted(lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LINES_PER_ASKER", 2), ("LINES", 5), ("ASKERS_MAX", 3)):
        monkeypatch.setattr(audit, name, value)
    clock = Clock()
    one = authorizer(clock=clock)
    one.follow({})
    for _ in range(10):
        assert not may(one)
    assert len(lines.records) == 2
    for number in range(20):
        assert not may(one, Principal("User", f"x{number}"))
    assert len(lines.records) == 4, "no more askers are counted"
    clock.now += 59
    assert not may(one)
    assert len(lines.records) == 4
    clock.now += 1
    assert not may(one)
    told = [line.getMessage() for line in lines.records[4:]]
    assert told[0] == "27 more refusals were not logged; kpybroker_authorizer_refusals_total counts all of them"
    assert len(told) == 2
    assert one.audit.refusals == 32
    for number in range(3):
        for _ in range(3):
            may(one, Principal("User", f"y{number}"))
    assert len(lines.records) == 10, "five lines in this minute"


def test_log_lines_of_grants_are_bounded_too(lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LINES_PER_ASKER", 2), ("LINES", 3)):
        monkeypatch.setattr(audit, name, value)
    lines.set_level(logging.DEBUG, LOGGER)
    clock = Clock()
    one = authorizer("User:ann", "User:bob", clock=clock)
    for _ in range(100):
        assert may(one)
    assert len(lines.records) == 2 * audit.GRANTS_PER_LINE
    for _ in range(100):
        assert may(one, BOB)
    assert len(lines.records) == 3 * audit.GRANTS_PER_LINE
    assert not may(one, ANONYMOUS), "refusals have lines of their own"
    assert "is Denied" in lines.records[-1].getMessage()
    clock.now += 60
    assert may(one)
    assert lines.records[-2].getMessage() == "140 more grants were not logged"


def test_a_line_is_short(lines: pytest.LogCaptureFixture) -> None:
    one = authorizer()
    one.follow({})
    assert not may(one, ANONYMOUS, name="n" * 30_000)
    assert len(lines.records[0].getMessage()) < 1000
