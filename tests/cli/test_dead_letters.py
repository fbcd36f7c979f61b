"""`kpybroker groups dead-letters` and `redrive`, with dead letters that any producer may write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kpybroker.shares.dead_letters import DELIVERY_COUNT, GROUP, MESSAGE, OFFSET, PARTITION, TOPIC
from tests.cli.shell import Answer, Shell


class Letters:
    """A topic with records, a topic for their dead letters, and a group."""

    def __init__(self, shell: Shell, topic: str, group: str) -> None:
        self.shell, self.topic, self.group, self.dead = shell, topic, group, f"dlq.{topic}"
        shell("topics", "create", topic, "--partitions", "2")
        shell("topics", "create", self.dead, "--partitions", "2")

    def write(
        self, offset: int, *, partition: int = 0, group: str | None = None, topic: str | None = None, **of: Any
    ) -> None:
        told = {
            TOPIC: topic or self.topic,
            PARTITION: partition,
            OFFSET: offset,
            GROUP: group or self.group,
            DELIVERY_COUNT: 3,
            MESSAGE: "Offset rejected by client.",
        }
        headers = [*of.pop("headers", []), *({"key": name, "value": str(value)} for name, value in told.items())]
        line = {"key": None, "value": None, **of, "headers": headers, "partition": partition}
        assert self.shell("produce", self.dead, "--json-lines", stdin=json.dumps(line).encode()).code == 0

    def __call__(self, command: str, *more: str) -> Answer:
        told = self.shell("groups", command, self.group, "--topic", self.dead, *more)
        assert told.code == 0, told.err
        return told

    def sent(self, **counts: int) -> dict[str, str | int]:
        return {"topic": self.topic, "sent": 0, "repeated": 0, "gone": 0, **counts}

    def values(self) -> list[tuple[int, str | None]]:
        """Partition and value of all records of the source topic."""
        told = self.shell("consume", self.topic, "--from-beginning", "--json")
        return [(row["partition"], row["value"]) for row in told.lines]


@pytest.fixture
def letters(shell: Shell, topic: str, group: str) -> Letters:
    return Letters(shell, topic, group)


def test_dead_letters_are_shown(letters: Letters) -> None:
    letters.write(7, value="x", headers=[{"key": "trace", "value": "1"}])
    letters.write(8, group="another")
    letters.shell("produce", letters.dead, stdin=b"no dead letter\n")
    [row] = letters("dead-letters", "--json").json
    letter = row.pop("dead_letter")
    assert row == {
        "topic": letters.topic,
        "partition": 0,
        "offset": 7,
        "group": letters.group,
        "deliveries": 3,
        "reason": "Offset rejected by client.",
    }
    assert (letter["value"], letter["headers"][0]) == ("x", {"key": "trace", "value": "1"})
    head, _, line = letters("dead-letters").out.splitlines()
    assert head.split() == ["TOPIC", "PARTITION", "OFFSET", "DELIVERIES", "WRITTEN", "REASON"]
    assert line.split()[:4] == [letters.topic, "0", "7", "3"]
    letters.write(9)
    assert [row["offset"] for row in letters("dead-letters", "--json", "--max", "1").json] == [7]
    traced = letters("dead-letters", "--json", "--where", "exists header.trace").json
    assert [row["offset"] for row in traced] == [7]
    by_offset = letters("dead-letters", "--json", "--where", 'header."__dlq.errors.offset" == "9"').json
    assert [row["offset"] for row in by_offset] == [9]
    assert "no dead letters that were not redriven and match" in letters("dead-letters", "--where", "tag == 'x'").err


def test_a_redrive_sends_each_record_once(letters: Letters) -> None:
    letters.shell("produce", letters.topic, "--partition", "1", stdin=b"zero\none\n")
    letters.write(0, partition=1)
    letters.write(0, partition=1)
    letters.write(5, value="copy", headers=[{"key": "trace", "value": "1"}])
    letters.write(99, partition=1)
    letters.write(1, topic="gone-" + letters.topic)
    plan = letters("redrive", "--json").json
    assert plan["executed"] is False
    assert plan["topics"] == [
        letters.sent(sent=2, repeated=1, gone=1),
        {"topic": "gone-" + letters.topic, "sent": 0, "repeated": 0, "gone": 1},
    ]
    assert len(letters.values()) == 2
    assert letters("redrive", "--json", "--execute").json == {**plan, "executed": True}
    assert sorted(letters.values()) == [(0, "copy"), (1, "one"), (1, "zero"), (1, "zero")]
    told = letters.shell("consume", letters.topic, "--partition", "0", "--from-beginning", "--json")
    assert told.lines[0]["headers"] == [{"key": "trace", "value": "1"}]
    assert letters("redrive", "--json", "--execute").json == {"executed": True, "topics": []}
    assert len(letters.values()) == 4
    assert letters("dead-letters", "--json").json == []
    assert len(letters("dead-letters", "--json", "--all").json) == 5


def test_a_redrive_continues_where_the_last_one_ended(letters: Letters) -> None:
    letters.write(0, value="a")
    letters("redrive", "--execute")
    letters.write(1, value="b")
    [row] = letters("dead-letters", "--json").json
    assert row["offset"] == 1
    assert letters("redrive", "--json", "--execute", "--max", "1").json["topics"] == [letters.sent(sent=1)]
    assert letters.values() == [(0, "a"), (0, "b")]
    assert letters("redrive", "--json", "--execute", "--all").json["topics"] == [letters.sent(sent=2)]
    assert letters("dead-letters", "--json").json == []


def test_a_group_without_a_dead_letter_topic(letters: Letters) -> None:
    told = letters.shell("groups", "redrive", letters.group)
    assert told.code == 1
    assert "--topic" in told.err
