"""Tests that state of Apache Kafka is unchanged after kpybroker has run on the same directory: users, rights, tokens,
share groups and streams groups."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from compat_tests.changing import until
from compat_tests.dumps import METADATA
from compat_tests.word_counts import await_counts, counting, send_lines
from kpybroker.wire.rpc import (
    consumer_group_heartbeat,
    find_coordinator,
    share_group_heartbeat,
    streams_group_heartbeat,
)
from oracle.asking import ask
from oracle.share_scenes import SETTINGS as SETTINGS_OF_SHARES
from oracle.streams_scenes import NOT_LOADED, passing
from oracle.streams_scenes import SETTINGS as SETTINGS_OF_STREAMS
from oracle.takeover import KAFKA, KPYBROKER, Home
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
PATIENCE_S = 60.0
LOGIN = """security.protocol=SASL_PLAINTEXT
sasl.mechanism=SCRAM-SHA-256
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="%s" password="%s"%s;
"""
BY_TOKEN = ' tokenauth="true"'


def stay_with_kpybroker(
    home: Home, meanwhile: Callable[[], None] = lambda: None, settings: Mapping[str, str] | None = None
) -> None:
    """Run kpybroker until it has written a snapshot of the metadata, which must contain every record. Also sets a
    quota."""

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

    kpybroker also lists credentials and tokens. A user whose credential was created on kpybroker can log in to Apache
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


@pytest.mark.full
def test_a_share_group() -> None:
    """The group continues at its position, on kpybroker and afterwards on Apache Kafka."""

    def seen(home: Home) -> list[list[str]]:
        told = tool("kafka-share-groups", "--describe", "--group", "sharers", bootstrap=home.bootstrap).ok()
        return [line.split() for line in told.splitlines() if "shared" in line]

    def share(home: Home, count: int) -> list[str]:
        read = ("--topic", "shared", "--group", "sharers", "--max-messages", str(count), "--timeout-ms", "30000")
        return tool("kafka-console-share-consumer", *read, bootstrap=home.bootstrap).ok().split()

    with Home() as home:
        home.start(KAFKA)
        tool("kafka-topics", "--create", "--topic", "shared", bootstrap=home.bootstrap).ok()
        earliest = ("--alter", "--entity-type", "groups", "--entity-name", "sharers", "--add-config")
        tool("kafka-configs", *earliest, "share.auto.offset.reset=earliest", bootstrap=home.bootstrap).ok()
        numbers = [str(number) for number in range(10)]
        tool("kafka-console-producer", "--topic", "shared", bootstrap=home.bootstrap, stdin="\n".join(numbers)).ok()
        read = share(home, 4)
        assert len(read) == 4
        before = seen(home)
        assert before

        def read_on() -> None:
            until(lambda: seen(home) == before, "the share group is where it was")
            read.extend(share(home, 3))
            before[:] = seen(home)

        home.stop()
        stay_with_kpybroker(home, read_on)
        home.start(KAFKA)
        until(lambda: seen(home) == before, "the share group is where it was")
        assert sorted(read + share(home, 3)) == numbers
        home.stop()


@pytest.mark.full
def test_a_streams_group(tmp_path: Path) -> None:
    """The member keeps its tasks on kpybroker and afterwards on Apache Kafka, and its counts continue."""

    def member(home: Home) -> list[str]:
        """The row of the only member in the output of kafka-streams-groups, by columns."""
        asked = ("--describe", "--group", "counters", "--members")
        told = tool("kafka-streams-groups", *asked, bootstrap=home.bootstrap).ok()
        return next((line.split() for line in told.splitlines() if line.startswith("counters")), [])

    with Home() as home:
        home.start(KAFKA)
        for topic in ("lines", "counts"):
            tool("kafka-topics", "--create", "--topic", topic, "--partitions", "2", bootstrap=home.bootstrap).ok()
        with counting(home.bootstrap, "counters", "lines", "counts", tmp_path) as program:
            wanted = send_lines(home.bootstrap, "lines")
            await_counts(home.bootstrap, "counts", wanted, program)
            before = member(home)
            assert "ACTIVE:" in before
            for kind in (KPYBROKER, KAFKA, KPYBROKER):
                home.stop()
                home.start(kind)
                wanted += send_lines(home.bootstrap, "lines")
                await_counts(home.bootstrap, "counts", wanted, program)
                assert member(home) == before
            program.stop()
        home.stop()


HEARTBEATS: dict[str, tuple[int, Any, dict[str, Any]]] = {
    "ConsumerGroupHeartbeat": (
        1,
        consumer_group_heartbeat,
        {"subscribed_topic_names": ["wide", "one"], "rebalance_timeout_ms": 60_000, "topic_partitions": []},
    ),
    "ShareGroupHeartbeat": (1, share_group_heartbeat, {"subscribed_topic_names": ["wide", "one"]}),
    "StreamsGroupHeartbeat": (
        0,
        streams_group_heartbeat,
        {
            "topology": passing("wide"),
            "rebalance_timeout_ms": 60_000,
            "process_id": "p",
            "active_tasks": [],
            "standby_tasks": [],
            "warmup_tasks": [],
        },
    ),
}
MEMBER_ID = "kpFFS1QrTQ2Kv3sZrBT4tA"
PARTITIONS = {"ConsumerGroupHeartbeat": 4, "ShareGroupHeartbeat": 4, "StreamsGroupHeartbeat": 3}
BEATS = 3


def beat(home: Home, api: str, epoch: int) -> Any:
    """Send a heartbeat, again until the coordinator has loaded the group. Returns the response."""
    version, rpc, facts = HEARTBEATS[api]
    request = rpc.Request(group_id=api, member_id=MEMBER_ID, member_epoch=epoch, **(facts if epoch == 0 else {}))

    def answered() -> Any:
        wanted = find_coordinator.Request(coordinator_keys=[api])
        ask(home.address, "FindCoordinator", 6, wanted, find_coordinator.Response, PATIENCE_S)
        answer = ask(home.address, api, version, request, rpc.Response, PATIENCE_S)
        assert answer.error_code in (0, *NOT_LOADED), (api, answer.error_code, answer.error_message)
        return None if answer.error_code else answer

    return until(answered, f"{api} is answered")


def join(home: Home, api: str) -> int:
    """Send heartbeats until the member has all partitions. Returns its epoch."""
    epoch, count = 0, 0

    def has_joined() -> bool:
        nonlocal epoch, count
        told = beat(home, api, epoch)
        epoch = told.member_epoch
        if api == "StreamsGroupHeartbeat":
            rows = told.active_tasks or []
        else:
            rows = told.assignment.topic_partitions if told.assignment is not None else []
        count = sum(len(row.partitions) for row in rows) or count
        return count == PARTITIONS[api]

    until(has_joined, f"the member of {api} has its partitions")
    return epoch


@pytest.mark.full
def test_the_epochs_of_groups_stay() -> None:
    """The hash of the topics in the groups' records is that of Apache Kafka: no coordinator of either kind bumps the
    epoch of a consumer group, a share group or a streams group that the other kind has led. The broker is in a rack."""
    settings = {"broker.rack": "a", "group.consumer.assignment.interval.ms": "0"}
    with Home(properties=SETTINGS_OF_SHARES | SETTINGS_OF_STREAMS | settings) as home:
        home.start(KAFKA)
        for topic, count in (("wide", "3"), ("one", "1")):
            tool("kafka-topics", "--create", "--topic", topic, "--partitions", count, bootstrap=home.bootstrap).ok()
        epochs = {api: join(home, api) for api in HEARTBEATS}
        for kind in (KPYBROKER, KAFKA, KPYBROKER):
            home.stop()
            home.start(kind)
            for api, epoch in epochs.items():
                assert [beat(home, api, epoch).member_epoch for _ in range(BEATS)] == [epoch] * BEATS, (kind, api)
        home.stop()
