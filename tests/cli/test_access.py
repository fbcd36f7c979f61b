"""Tests of `kpybroker users` and `kpybroker acls` on a broker with logins and ACLs: changes take effect for clients."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AclBindingFilter, AclOperation, AclPermissionType, AdminClient
from confluent_kafka.admin import ResourcePatternType as Pattern
from confluent_kafka.admin import ResourceType as Resource

from kpybroker.testing import Broker
from tests.cli.shell import Answer, Shell

pytestmark = pytest.mark.slow

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
Run = Callable[..., Answer]


@pytest.fixture
def admin(kpybroker_secure: Broker, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command as the super user."""
    monkeypatch.setenv("KPYBROKER_COMMAND_CONFIG", str(kpybroker_secure.client.properties))
    return Shell(kpybroker_secure.bootstrap, monkeypatch)


@pytest.fixture
def user() -> str:
    """A user name that only this test uses."""
    return f"user-{uuid.uuid4().hex[:8]}"


def acls_of(broker: Broker) -> set[tuple[Any, ...]]:
    """All ACLs that confluent-kafka lists."""
    asking = AdminClient({"bootstrap.servers": broker.bootstrap, **broker.client.confluent})
    every = AclBindingFilter(Resource.ANY, None, Pattern.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY)
    return {
        (acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host, acl.operation, acl.permission_type)
        for acl in asking.describe_acls(every).result(30)
    }


def login(broker: Broker, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
    """Settings of a confluent-kafka client."""
    named = {"sasl.username": user, "sasl.password": password, "sasl.mechanism": mechanism}
    return {"bootstrap.servers": broker.bootstrap, **broker.client.confluent, **named, "log_level": 0}


def topics(settings: dict[str, Any]) -> set[str]:
    """The topics that a user can list. Raises KafkaException."""
    return set(AdminClient(settings).list_topics(timeout=10).topics)


def may_produce(settings: dict[str, Any], topic: str) -> bool:
    """Whether a record is acknowledged."""
    failed = []
    producer = Producer(settings)
    producer.produce(topic, b"1", on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(30) == 0
    return not failed


def test_a_user_logs_in_until_removed(kpybroker_secure: Broker, admin: Run, user: str, tmp_path: Path) -> None:
    assert admin("users", "add", user, stdin=b"the first\n").out == f"user {user} can log in with SCRAM-SHA-512\n"
    assert topics(login(kpybroker_secure, user, "the first")) == set()
    (tmp_path / "password").write_text("an \u00e9 and a space \nnot this line")
    added = admin("users", "add", user, "--password-file", str(tmp_path / "password"), "--iterations", "5000", "--json")
    assert added.json == {"user": user, "mechanism": "SCRAM-SHA-512", "iterations": 5000}
    assert topics(login(kpybroker_secure, user, "an \u00e9 and a space ")) == set()
    with pytest.raises(KafkaException):
        topics(login(kpybroker_secure, user, "the first"))
    assert admin("users", "add", user, "--mechanism", "scram-sha-256", stdin=b"other").code == 0
    held = [row for row in admin("users", "list", "--json").json if row["user"] == user]
    assert [(row["mechanism"], row["iterations"]) for row in held] == [("SCRAM-SHA-256", 4096), ("SCRAM-SHA-512", 5000)]
    assert admin("users", "remove", user, "--mechanism", "SCRAM-SHA-256").code == 0
    refused = admin("users", "remove", user, "--mechanism", "SCRAM-SHA-256")
    assert (refused.code, refused.err) == (
        1,
        f"kpybroker: user {user} has no credential for SCRAM-SHA-256, only for SCRAM-SHA-512\n",
    )
    assert admin("users", "remove", user).out == f"removed SCRAM-SHA-512 of user {user}\n"
    with pytest.raises(KafkaException):
        topics(login(kpybroker_secure, user, "an \u00e9 and a space "))
    assert user not in admin("users", "list").out


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "said"),
    [
        (("add", "ann"), b"", 2, "the password is empty"),
        (("add", "ann"), b"\n", 2, "the password is empty"),
        (("add", "ann"), b"x" * 1025, 2, "the password has more than 1024 bytes"),
        (("add", "ann"), b"\xff", 2, "the password is not UTF-8"),
        (("add", "ann", "--password-file", "/nowhere"), b"", 2, "cannot read /nowhere: No such file or directory"),
        (("add", "ann", "--mechanism", "PLAIN"), b"x", 2, "the mechanisms are SCRAM-SHA-256, SCRAM-SHA-512"),
        (("add", "ann", "--iterations", "4095"), b"x", 2, "4096"),
        (("add", ""), b"x", 1, "UNACCEPTABLE_CREDENTIAL"),
        (("remove", "dve"), b"", 1, "there is no user dve; did you mean dev?"),
    ],
)
def test_what_is_no_user_is_refused(admin: Run, arguments: tuple[str, ...], stdin: bytes, code: int, said: str) -> None:
    refused = admin("users", *arguments, stdin=stdin)
    assert (refused.code, refused.out) == (code, "")
    assert said in refused.err


def test_a_password_is_not_shown(admin: Run, user: str) -> None:
    secret = "pa55 of " + user
    told = [admin("users", "add", user, stdin=secret.encode()), admin("users", "list"), admin("users", "remove", user)]
    assert not any(secret in each.out + each.err for each in told)


def test_a_user_may_what_is_allowed(kpybroker_secure: Broker, admin: Run, user: str) -> None:
    topic = kpybroker_secure.topic("orders")
    assert admin("users", "add", user, stdin=b"secret").code == 0
    ann = login(kpybroker_secure, user, "secret")
    assert not may_produce(ann, topic)
    assert admin("acls", "allow", user, "produce", "--topic", topic).out.splitlines() == [
        f"added: allow User:{user} to write topic {topic}",
        f"added: allow User:{user} to describe topic {topic}",
        f"added: allow User:{user} to create topic {topic}",
    ]
    assert may_produce(ann, topic)
    assert topics(ann) == {topic}
    assert admin("acls", "deny", "*", "write", "--topic", topic[:-1], "--prefixed").out == (
        f"added: deny User:* to write topic {topic[:-1]}...\n"
    )
    assert not may_produce(ann, topic)
    removed = admin("acls", "remove", "*", "--topic", topic[:-1], "--prefixed", "--json").json
    assert [(row["permission"], row["operation"], row["pattern"]) for row in removed] == [("deny", "write", "prefixed")]
    assert may_produce(ann, topic)
    assert len(admin("acls", "remove", user).out.splitlines()) == 3
    assert not may_produce(ann, topic)
    assert f"User:{user} has no such ACL" in admin("acls", "remove", user).err


def test_an_acl_that_two_words_stand_for_is_added_once(admin: Run, user: str) -> None:
    told = admin("acls", "allow", user, "produce,consume", *("--topic", f"t-{user}") * 2, "--group", f"g-{user}").out
    assert [line.split(" to ")[1].split()[0] for line in told.splitlines()] == [
        "write",
        "describe",
        "create",
        "read",
        "read",
    ]
    assert len(admin("acls", "remove", user).out.splitlines()) == 5


def test_acls_are_kafkas(kpybroker_secure: Broker, admin: Run, user: str) -> None:
    """The ACLs that each operation of the command creates, and the list of all ACLs, are compared with the ACLs that
    librdkafka lists."""
    resources = ("--topic", f"t-{user}", "--group", f"g-{user}", "--transactional-id", f"x-{user}")
    assert admin("acls", "allow", user, "consume,alter-configs", *resources, "--host", "::1").code == 0
    assert admin("acls", "allow", f"User:{user}", "produce", *resources).code == 0
    assert admin("acls", "deny", user, "alter", "--cluster").code == 0
    assert admin("acls", "allow", user, "describe_tokens", "--user", user).code == 0
    whose, there, anywhere = f"User:{user}", "0:0:0:0:0:0:0:1", "*"
    topic, group, transaction = (
        (kind, f"{name}-{user}")
        for kind, name in zip((Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID), "tgx", strict=True)
    )
    o, allow = AclOperation, AclPermissionType.ALLOW
    expected = {
        *((*topic, there, each) for each in (o.READ, o.DESCRIBE, o.ALTER_CONFIGS)),
        *((*group, there, each) for each in (o.READ, o.ALTER_CONFIGS)),
        (*transaction, there, o.ALTER_CONFIGS),
        *((*topic, anywhere, each) for each in (o.WRITE, o.DESCRIBE, o.CREATE)),
        *((*transaction, anywhere, each) for each in (o.WRITE, o.DESCRIBE)),
    }
    found = {acl for acl in acls_of(kpybroker_secure) if acl[3] == whose and acl[0] != Resource.BROKER}
    known = {(kind, name, Pattern.LITERAL, whose, host, each, allow) for kind, name, host, each in expected}
    assert found >= known
    shown = admin("acls", "list", "--principal", user, "--json").json
    assert {(row["resource"], row["name"], row["host"]) for row in shown} >= {
        ("cluster", "kafka-cluster", anywhere),
        ("user", whose, anywhere),
        ("topic", f"t-{user}", there),
    }
    assert len(shown) == len(known) + 2
    of_topic = admin("acls", "list", "--topic", f"t-{user}", "--json").json
    assert {row["resource"] for row in of_topic} == {"topic"}
    assert len(admin("acls", "remove", user, "produce", "--topic", f"t-{user}", "--json").json) == 4, "describe twice"
    assert len(admin("acls", "remove", user, "--json").json) == len(shown) - 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("allow", "ann", "read"), "no resource given; use --topic"),
        (("allow", "ann", "raed", "--topic", "t"), "there is no operation raed; did you mean read?"),
        (("allow", "ann", "consume", "--transactional-id", "x"), "give --topic and --group"),
        (("allow", "", "read", "--topic", "t"), "is not the name of a user"),
        (("allow", "ann", "read", "--topic", "t", "--host", "10.0.0.0/8"), "write one IP address"),
        (("allow", "ann", "read", "--topic", "*", "--prefixed"), "omit --prefixed to match all names"),
        (("remove", "ann", "produce"), "produce needs a resource"),
    ],
)
def test_what_is_no_acl_is_refused(admin: Run, arguments: tuple[str, ...], said: str) -> None:
    refused = admin("acls", *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert said in refused.err


def test_without_an_authorizer_the_answer_says_so(kpybroker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Shell(kpybroker.bootstrap, monkeypatch)("acls", "list")
    assert refused.code == 1
    assert "No Authorizer is configured" in refused.err


def test_a_redrive_needs_what_the_page_says(
    kpybroker_secure: Broker, admin: Run, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/security-acls.md: without one of these rights, the command fails, and with all of them it does not."""
    home, dead = kpybroker_secure.topic("home", partitions=1), kpybroker_secure.topic("dlq.home", partitions=1)
    kpybroker_secure.send(home, "original")
    for headers in ({}, {"__dlq.errors.offset": b"0"}):
        origin = {"__dlq.errors.topic": home, "__dlq.errors.partition": b"0"}
        kpybroker_secure.send(dead, *([None] if headers else ["copy"]), headers={**origin, **headers})
    assert admin("users", "add", user, stdin=b"secret").code == 0
    client = kpybroker_secure.client
    login = f'{MODULE} required username="{user}" password="secret";'
    lines = [line for line in client.properties.read_text().splitlines() if not line.startswith("sasl.jaas.config")]
    (tmp_path / "user.properties").write_text("\n".join([*lines, f"sasl.jaas.config={login}"]))

    def as_user(*arguments: str) -> Answer:
        with monkeypatch.context() as patch:
            patch.setenv("KPYBROKER_COMMAND_CONFIG", str(tmp_path / "user.properties"))
            return Shell(kpybroker_secure.bootstrap, patch)(*arguments)

    to_list = [("read", "--topic", dead), ("describe", "--group", f"{dead}-redrive")]
    to_redrive = [
        ("read", "--group", f"{dead}-redrive"),
        ("write", "--transactional-id", f"{dead}-redrive"),
        ("write", "--topic", home),
        ("read", "--topic", home),
    ]
    for command, rights in (("list", to_list), ("redrive", to_redrive)):
        more = ["--execute"] if command == "redrive" else []
        for right in rights:
            assert "AUTHORIZATION_FAILED" in as_user("dlq", command, dead, *more).err
            assert admin("acls", "allow", user, *right).code == 0
        told = as_user("dlq", command, dead, *more)
        assert (told.code, told.err) == (0, "")
    assert [record.value for record in kpybroker_secure.records(home)] == [b"original", b"copy", b"original"]
