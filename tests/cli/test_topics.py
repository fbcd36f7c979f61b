"""Tests of `kpybroker topics`: each command makes the reported change, and each error is one line that names the
cause."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kpybroker.client.peer import Peer
from kpybroker.server.node import Node
from tests.asking import make
from tests.cli.shell import Answer, Shell, kpybroker_process
from tests.conftest import WithBroker
from tests.handlers.strangers import live_stranger
from tests.handlers.test_alter_partition import make_topic

pytestmark = pytest.mark.slow


def test_a_topic_lives_from_create_to_delete(shell: Shell, topic: str) -> None:
    made = shell("topics", "create", topic, "--partitions", "3", "--set", "retention.ms=60000", "--json")
    assert made == (0, made.out, "")
    assert made.json == [{"topic": topic, "created": True, "partitions": 3, "replication": 1}]
    listed = {row["topic"]: row for row in shell("topics", "list", "--json").json}
    assert listed[topic] == {"topic": topic, "partitions": 3, "replication": 1, "records": 0}
    (described,) = shell("topics", "describe", topic, "--json").json
    assert described["settings"] == {"retention.ms": "60000"}
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    assert {row["leader"] for row in described["partitions"]} == {1}
    assert shell("topics", "delete", topic).out == f"deleted {topic}\n"
    assert topic not in {row["topic"] for row in shell("topics", "list", "--json").json}


def test_alter_adds_partitions_and_changes_settings(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic, "--set", "retention.ms=60000")
    altered = shell("topics", "alter", topic, "--partitions", "4", "--set", "max.message.bytes=2000", "--json")
    expected = {"retention.ms": "60000", "max.message.bytes": "2000"}
    assert altered.json == {"topic": topic, "partitions": 4, "settings": expected}
    altered = shell("topics", "alter", topic, "--unset", "retention.ms", "--json")
    assert altered.json == {"topic": topic, "partitions": 4, "settings": {"max.message.bytes": "2000"}}


def test_creating_an_existing_topic_fails_without_if_not_exists(shell: Shell, topic: str) -> None:
    assert shell("topics", "create", topic).out == f"created {topic}\n"
    again = shell("topics", "create", topic)
    assert again.code == 1
    assert "already exists" in again.err
    assert "--if-not-exists" in again.err
    assert shell("topics", "create", topic, "--if-not-exists").out == f"{topic} already exists\n"
    assert shell("topics", "delete", f"{topic}-not", "--if-exists").code == 0


def test_topics_without_a_leader_can_be_described_altered_and_deleted(with_broker: WithBroker) -> None:
    """An operator needs these commands most when a topic has no leader."""

    async def scenario(peer: Peer, node: Node) -> None:
        async def topics(*arguments: str) -> Answer:
            process = kpybroker_process("--bootstrap", node.bootstrap, "topics", *arguments)
            out, err = await asyncio.to_thread(process.communicate)
            return Answer(process.returncode, out, err)

        await make(peer, "led")
        async with live_stranger(node) as stranger:
            running = kpybroker_process("--bootstrap", node.bootstrap, "brokers", "unregister", "2")
            _, refused = await asyncio.to_thread(running.communicate)
            assert (running.returncode, "broker 2 is running" in refused) == (1, True)
            await make_topic(peer, 2)
            await stranger.beat(want_fence=True)
            answer = await topics("describe", "t", "led", "--json")
            lone, led = (topic["partitions"][0] for topic in answer.json)
            known: dict[str, Any] = {name: lone[name] for name in ("leader", "replicas", "isr", "start", "end")}
            assert known == {"leader": None, "replicas": [2], "isr": [2], "start": None, "end": None}
            assert (led["leader"], led["start"], led["end"]) == (1, 0, 0)
            answer = await topics("describe", "t")
            assert answer.out.splitlines()[-1].split() == ["0", "-", "2", "2", "-", "-", "-"]
            assert (await topics("alter", "t", "--set", "retention.ms=60000")).out == "altered t\n"
            assert (await topics("delete", "t")).out == "deleted t\n"

    with_broker(scenario)


def test_deleting_a_missing_topic_deletes_nothing_and_fails(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic)
    answer = shell("topics", "delete", topic, f"{topic}-not")
    assert answer.code == 1
    assert f"there is no topic {topic}-not, so nothing was deleted; did you mean {topic}?" in answer.err
    assert "--if-exists ignores missing topics" in answer.err
    assert "topics create" not in answer.err
    assert shell("topics", "delete", topic, f"{topic}-not", "--if-exists").out == f"deleted {topic}\n"


@pytest.mark.parametrize("command", [("describe",), ("delete",), ("alter", "--partitions", "9")])
def test_an_error_about_an_unknown_topic_suggests_the_nearest_name(
    shell: Shell, topic: str, command: tuple[str, ...]
) -> None:
    shell("topics", "create", topic)
    answer = shell("topics", *command, topic[:-1] + "x")
    assert answer.code == 1
    assert f"there is no topic {topic[:-1]}x" in answer.err
    assert "did you mean" in answer.err
    assert answer.err.count("\n") == 1


def test_a_terminal_shows_a_table(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic, "--partitions", "12", "--set", "retention.ms=60000")
    title, head, rule, *rows, setting = shell("topics", "describe", topic).out.splitlines()
    assert title == topic
    assert head.split() == ["PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END", "RECORDS"]
    assert set(rule) == {"─"}
    assert len(rows) == 12
    assert len({len(row.rstrip()) for row in rows}) == 1, "numbers are right-aligned"
    assert setting == "retention.ms=60000"


@pytest.mark.parametrize(
    ("arguments", "code", "cause"),
    [
        (("topics", "create", "bad name"), 1, "bad name"),
        (("topics", "create", "t", "--partitions", "0"), 2, "'--partitions'"),
        (("topics", "create", "t", "--partitions", "many"), 2, "'--partitions'"),
        (("topics", "create", "t", "--partitions", "100000000"), 2, "1<=x<=100000"),
        (("topics", "create", "t", "--replication", "0"), 2, "'--replication'"),
        (("topics", "create", "t", "--replication", "3"), 1, "replication factor"),
        (("topics", "create", "t", "--set", "retention.ms"), 2, "NAME=VALUE"),
        (("topics", "create", "t", "--set", "retention.mss=1"), 1, "retention.mss; did you mean retention.ms?"),
        (("topics", "create", "t", "--set", "retention.ms=soon"), 1, "soon"),
        (("topics", "create"), 2, "TOPIC"),
        (("topics", "alter", "t"), 2, "--partitions"),
        (("topics", "alter", "t", "--partitions", "0"), 2, "'--partitions'"),
        (("topics", "list", "--nope"), 2, "--nope"),
        (("topics", "lost"), 2, "lost"),
        (("topicks",), 2, "topicks"),
    ],
    ids=str,
)
def test_each_error_is_one_line(shell: Shell, arguments: tuple[str, ...], code: int, cause: str) -> None:
    answer = shell(*arguments)
    assert answer.code == code
    assert answer.err.count("\n") == 1
    assert answer.err.startswith("kpybroker: ")
    assert cause.lower() in answer.err.lower()
    assert answer.out == ""
