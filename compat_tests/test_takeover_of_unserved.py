"""Tests that state of Apache Kafka is unchanged after kpybroker has run on the same directory, even if kpybroker does
not support it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from compat_tests.changing import until
from compat_tests.dumps import METADATA
from oracle.takeover import KAFKA, KPYBROKER, Home, lower_features
from oracle.target import steady_port
from oracle.tools import tool

SECURED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "delegation.token.secret.key": "a secret of all nodes",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,NAMED:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "listener.name.named.scram-sha-256.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
    "required;",
}
LOGIN = """security.protocol=SASL_PLAINTEXT
sasl.mechanism=SCRAM-SHA-256
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="%s" password="%s"%s;
"""
BY_TOKEN = ' tokenauth="true"'


def stay_with_kpybroker(
    home: Home, meanwhile: Callable[[], None] = lambda: None, settings: Mapping[str, str] | None = None
) -> None:
    """Run kpybroker until it has written a snapshot of the metadata, which must contain the unsupported records. Also
    sets a quota."""

    def snapshots() -> set[str]:
        return {path.name for path in (home.data[0] / METADATA).glob("*.checkpoint")}

    home.start(KPYBROKER, settings)
    before = snapshots()
    rate = ("--entity-type", "clients", "--entity-default", "--add-config", "controller_mutation_rate=1000.5")
    tool("kafka-configs", "--alter", *rate, bootstrap=home.bootstrap).ok()
    meanwhile()
    tool("kafka-topics", "--create", "--topic", "wide", "--partitions", "500", bootstrap=home.bootstrap).ok()
    until(lambda: snapshots() - before, "kpybroker has written a snapshot")
    home.stop()


def row_of(token_id: str, told: str) -> list[str]:
    """The output of kafka-delegation-tokens for one token."""
    return [line for line in told.splitlines() if line.startswith(token_id)]


@pytest.mark.full
def test_users_and_their_rights(tmp_path: Path) -> None:
    """Quotas, SCRAM credentials, ACLs and delegation tokens are listed as before, and a user logs in as before.

    kpybroker lists credentials and tokens, too. A user whose credential was created on kpybroker can log in to Apache
    Kafka.
    """
    login, other = tmp_path / "alice.properties", tmp_path / "bob.properties"
    login.write_text(LOGIN % ("alice", "secret", ""))
    other.write_text(LOGIN % ("bob", "secret", ""))
    with Home() as home:
        controller, named = steady_port(), f"127.0.0.1:{steady_port()}"
        clients = f"PLAINTEXT://{home.bootstrap},NAMED://{named}"
        secured = {
            **SECURED,
            "listeners": f"{clients},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": clients,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        }

        user = ("--entity-type", "users", "--entity-name", "alice")

        def seen() -> list[str]:
            listed = ("--describe", "--owner-principal", "User:alice", "--command-config", str(login))
            return [
                tool("kafka-configs", "--describe", *user, bootstrap=home.bootstrap).ok(),
                tool("kafka-acls", "--list", bootstrap=home.bootstrap).ok(),
                tool("kafka-delegation-tokens", *listed, bootstrap=named).ok(),
            ]

        def create_token() -> str:
            """Create a token. Returns its id."""
            created = ("--create", "--max-life-time-period", "-1", "--command-config", str(login))
            told = tool("kafka-delegation-tokens", *created, bootstrap=named).ok()
            [(token_id, secret)] = re.findall(r"^(\S+)\s+(\S+=)\s+User:alice", told, re.MULTILINE)
            (tmp_path / f"{token_id}.properties").write_text(LOGIN % (token_id, secret, BY_TOKEN))
            return str(token_id)

        def use(token_id: str) -> None:
            by_token = ("--list", "--command-config", str(tmp_path / f"{token_id}.properties"))
            tool("kafka-topics", *by_token, bootstrap=named).ok()

        def add_a_user() -> None:
            assert seen() == before
            use(tokens[0])
            tokens.append(create_token())
            bob = ("--alter", "--entity-type", "users", "--entity-name", "bob", "--add-config")
            tool("kafka-configs", *bob, "SCRAM-SHA-256=[password=secret]", bootstrap=home.bootstrap).ok()

        home.start(KAFKA, secured)
        lower_features(home)
        for one in ("producer_byte_rate=1024", "SCRAM-SHA-256=[iterations=8192,password=secret]"):
            tool("kafka-configs", "--alter", *user, "--add-config", one, bootstrap=home.bootstrap).ok()
        for resource in (("--topic", "orders"), ("--group", "bill", "--resource-pattern-type", "prefixed")):
            allowed = ("--add", "--allow-principal", "User:alice", "--operation", "Read", *resource)
            tool("kafka-acls", *allowed, bootstrap=home.bootstrap).ok()
        tokens = [create_token()]
        words = "SCRAM-SHA-256=iterations=8192", "User:alice", "User:alice"
        until(lambda: all(word in told for told, word in zip(seen(), words, strict=True)), "all of them are listed")
        before = seen()
        home.stop()
        stay_with_kpybroker(home, add_a_user, secured)
        home.start(KAFKA, secured)
        now = seen()
        assert now[:2] == before[:2]
        assert row_of(tokens[0], now[2]) == row_of(tokens[0], before[2])
        assert row_of(tokens[1], now[2])
        for token_id in tokens:
            use(token_id)
        tool("kafka-delegation-tokens", "--describe", "--command-config", str(other), bootstrap=named).ok()
        rate = ("--describe", "--entity-type", "clients", "--entity-default")
        assert "controller_mutation_rate=1000.5" in tool("kafka-configs", *rate, bootstrap=home.bootstrap).ok()
        home.stop()
