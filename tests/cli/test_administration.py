"""Tests of `configs`, `quotas`, `transactions` and `topics trim`: values that were set are shown, and removed values
are not."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException, Producer

from kpybroker.testing import Broker
from tests.cli.shell import Shell

OF = ("--default-client", "--user", "ann")


def own(shell: Shell, *whose: str) -> dict[str, tuple[str, str]]:
    return {row["name"]: (row["value"], row["source"]) for row in shell("configs", "get", *whose, "--json").json}


def test_settings_of_topics(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic)
    whose = ("--topic", topic)
    assert shell("configs", "set", "retention.ms=60000", "cleanup.policy=compact,delete", *whose).out == (
        f"changed retention.ms, cleanup.policy of topic {topic}\n"
    )
    assert own(shell, *whose) == {"retention.ms": ("60000", "topic"), "cleanup.policy": ("compact,delete", "topic")}
    assert shell("configs", "get", "retention.ms", *whose).out.splitlines()[2].split() == [
        "retention.ms",
        "60000",
        "topic",
    ]
    assert shell("configs", "unset", "retention.ms", "cleanup.policy", *whose).code == 0
    nothing = shell("configs", "get", *whose)
    assert (nothing.code, nothing.out) == (0, "")
    assert "--all" in nothing.err
    everything = shell("configs", "get", "--all", *whose, "--json").json
    assert {row["source"] for row in everything} >= {"default"}


@pytest.mark.parametrize(("whose", "source"), [(("--all-brokers",), "all brokers"), (("--broker", "ID"), "broker")])
def test_settings_of_brokers(shell: Shell, whose: tuple[str, ...], source: str) -> None:
    (node,) = (each["node_id"] for each in shell("brokers", "list", "--json").json)
    whose = tuple(str(node) if word == "ID" else word for word in whose)
    name = "log.cleaner.backoff.ms"
    assert shell("configs", "set", f"{name}=12345", *whose).code == 0
    try:
        assert own(shell, *whose)[name] == ("12345", source)
    finally:
        assert shell("configs", "unset", name, *whose).code == 0
    assert name not in own(shell, *whose)


def test_settings_of_groups(shell: Shell, group: str) -> None:
    whose = ("--group", group)
    assert shell("configs", "set", "consumer.session.timeout.ms=50000", *whose).code == 0
    assert own(shell, *whose) == {"consumer.session.timeout.ms": ("50000", "group")}
    assert shell("configs", "unset", "consumer.session.timeout.ms", *whose).code == 0
    assert own(shell, *whose) == {}


def test_quotas(shell: Shell) -> None:
    assert shell("quotas", "set", "consumer_byte_rate=1048576", "request_percentage=12.5", *OF).code == 0
    entity = {"client-id": None, "user": "ann"}
    mine = [row for row in shell("quotas", "list", "--json").json if row["entity"] == entity]
    assert {row["quota"]: row["value"] for row in mine} == {"consumer_byte_rate": 1048576, "request_percentage": 12.5}
    shown = [line.split() for line in shell("quotas", "list").out.splitlines() if "user ann" in line]
    assert [line[-2:] for line in shown] == [["consumer_byte_rate", "1048576"], ["request_percentage", "12.5"]]
    assert shell("quotas", "remove", "consumer_byte_rate", "request_percentage", *OF).code == 0
    assert not [row for row in shell("quotas", "list", "--json").json if row["entity"] == entity]


def test_the_oldest_records_are_deleted(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic, "--partitions", "2")
    lines = "".join(f'{{"value": "{n}", "partition": 0, "timestamp": {1000 + n}}}\n' for n in range(10))
    shell("produce", topic, "--json-lines", stdin=lines.encode())
    trim = ("topics", "trim", topic)
    planned = shell(*trim, "--before-offset", "4", "--json").json
    assert planned["executed"] is False
    assert planned["partitions"][0] == {"partition": 0, "start": 0, "new_start": 4, "deleted": 4, "left": 6}
    assert "--execute" in shell(*trim, "--before-offset", "4").err
    assert len(shell("consume", topic, "--from-beginning").out.split()) == 10, "a plan deletes nothing"
    assert shell(*trim, "--before-offset", "4", "--execute").code == 0
    assert shell("consume", topic, "--from-beginning").out.split() == ["4", "5", "6", "7", "8", "9"]
    assert shell(*trim, "--before-time", "1007", "--execute").code == 0
    assert shell("consume", topic, "--from-beginning").out.split() == ["7", "8", "9"]
    assert shell(*trim, "--before-offset", "100", "--partition", "1", "--execute").code == 0
    assert shell(*trim, "--everything", "--execute").code == 0
    assert shell("consume", topic, "--from-beginning").out == ""


def test_an_open_transaction_is_found_and_aborted(kpybroker: Broker, shell: Shell, topic: str) -> None:
    shell("topics", "create", topic)
    name = f"{topic}-id"
    producer = Producer({"bootstrap.servers": kpybroker.bootstrap, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, value="never seen")
    producer.flush()
    assert name in {row["transactional_id"] for row in shell("transactions", "list", "--open", "--json").json}
    found = shell("transactions", "describe", name, "--json").json
    assert (found["state"], found["partitions"]) == ("Ongoing", [f"{topic}-0"])
    assert f"{topic}-0" in shell("transactions", "describe", name).out
    assert shell("transactions", "abort", name).out == f"aborted {name}\n"
    assert name not in {row["transactional_id"] for row in shell("transactions", "list", "--open", "--json").json}
    assert name in shell("transactions", "list").out
    assert "no open transaction" in shell("transactions", "abort", name).out
    with pytest.raises(KafkaException):
        producer.commit_transaction()


@pytest.mark.parametrize(
    ("arguments", "code", "cause"),
    [
        (("configs", "get"), 2, "--topic NAME"),
        (("configs", "get", "--topic", "t", "--group", "g"), 2, "one of"),
        (("configs", "get", "--topic", "no-such-topic"), 1, "no-such-topic"),
        (("configs", "get", "--broker", "99"), 1, "no broker 99"),
        (("configs", "get", "no.such.setting", "--all-brokers"), 1, "no.such.setting"),
        (("configs", "set", "x", "--all-brokers"), 2, "NAME=VALUE"),
        (("configs", "set", "node.id=7", "--all-brokers"), 1, "node.id"),
        (("quotas", "set", "producer_byte_rate=1"), 2, "--user"),
        (("quotas", "set", "producer_byte_rate=much", "--user", "a"), 2, "number"),
        (("quotas", "set", "no_such_rate=1", "--user", "a"), 2, "no_such_rate"),
        (("quotas", "set", "producer_byte_rate=1", "--user", "a", "--ip", "::1"), 2, "--ip"),
        (("quotas", "remove", "producer_byte_rate", "--user", "a", "--default-user"), 2, "cannot be used together"),
        (("transactions", "describe", "no-such-id"), 1, "no-such-id"),
        (("transactions", "abort", "no-such-id"), 1, "no-such-id"),
        (("topics", "trim", "t"), 2, "--everything"),
        (("topics", "trim", "no-such-topic", "--everything"), 1, "no-such-topic"),
        (("topics", "trim", "t", "--before-time", "noon"), 2, "noon"),
    ],
    ids=str,
)
def test_each_error_is_one_line(shell: Shell, arguments: tuple[str, ...], code: int, cause: str) -> None:
    answer = shell(*arguments)
    assert (answer.code, answer.out) == (code, ""), answer
    assert answer.err.count("\n") == 1
    assert cause in answer.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("configs", "set", "topic", "t", "retention.ms=1"), "named with --topic: `kpybroker configs set --topic"),
        (("quotas", "set", "--client", "c", "producer_byte_rat=1"), "did you mean producer_byte_rate?"),
        (("quotas", "set", "--client", "c", "producer_byte_rate=1MB"), "write a number, bytes per second"),
        (("quotas", "remove", "--client", "c", "speed"), "there is no quota speed; the quotas are producer_byte_rate,"),
        (("topics", "create", "t", "--replication", "1", "--replication-factor", "1"), "give one of them"),
    ],
    ids=str,
)
def test_arguments_with_small_mistakes_are_accepted_or_explained(
    shell: Shell, arguments: tuple[str, ...], told: str
) -> None:
    answer = shell(*arguments)
    assert (answer.code, told in answer.err) == (2, True), answer.err


def test_the_replication_factor_may_have_the_name_of_kafka(shell: Shell, topic: str) -> None:
    (made,) = shell("topics", "create", topic, "--replication-factor", "1", "--json").json
    assert made["replication"] == 1
