"""`kpybroker dlq`, with dead letters that any producer may write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kpybroker.cli import group_facts
from kpybroker.client import session
from kpybroker.client.client import Client
from kpybroker.client.transaction import Transactions
from kpybroker.shares.dead_letters import DELIVERY_COUNT, GROUP, MESSAGE, OFFSET, PARTITION, TOPIC
from kpybroker.testing import Broker
from tests.cli.shell import Answer, Shell

REASON = "Offset rejected by client."


class Letters:
    """A topic with records, and a topic for their dead letters."""

    def __init__(self, shell: Shell, topic: str) -> None:
        self.shell, self.topic, self.dead = shell, topic, f"dlq.{topic}"
        shell("topics", "create", topic, "--partitions", "2")
        shell("topics", "create", self.dead, "--partitions", "2")

    def write(self, offset: int | None, *, partition: int = 0, topic: str | None = None, **of: Any) -> None:
        """Write a dead letter; facts whose value is None are left out."""
        told = {
            TOPIC: topic or self.topic,
            PARTITION: partition,
            OFFSET: offset,
            GROUP: of.pop("group", "workers"),
            DELIVERY_COUNT: 3,
            MESSAGE: REASON,
            **of.pop("told", {}),
        }
        kept = [{"key": name, "value": str(value)} for name, value in told.items() if value is not None]
        line = {"key": None, "value": None, **of, "headers": [*of.pop("headers", []), *kept], "partition": partition}
        assert self.shell("produce", self.dead, "--json-lines", stdin=json.dumps(line).encode()).code == 0

    def __call__(self, command: str, *more: str) -> Answer:
        told = self.shell("dlq", command, self.dead, *more)
        assert told.code == 0, told.err
        return told

    def redrive(self, *more: str) -> Any:
        return self("redrive", "--execute", "--json", *more).json

    def sent(self, **counts: int) -> dict[str, str | int]:
        return {"topic": self.topic, "sent": 0, "repeated": 0, "gone": 0, **counts}

    def rows(self, topic: str | None = None) -> list[Any]:
        """All records of a topic, as JSON; by default of the source topic."""
        return self.shell("consume", topic or self.topic, "--from-beginning", "--json").lines

    def values(self, topic: str | None = None) -> list[tuple[int, str | None]]:
        """Partition and value of all records."""
        return [(row["partition"], row["value"]) for row in self.rows(topic)]

    def left(self) -> list[str]:
        """The values of the letters that were not redriven."""
        return [row["value"] for row in self("list", "--json").json]


@pytest.fixture
def letters(shell: Shell, topic: str) -> Letters:
    return Letters(shell, topic)


def test_dead_letters_are_listed(letters: Letters) -> None:
    letters.write(7, value="x", headers=[{"key": "trace", "value": "1"}])
    [row] = letters("list", "--json").json
    assert (row["partition"], row["offset"], row["value"]) == (0, 0, "x")
    assert row["headers"][0] == {"key": "trace", "value": "1"}
    assert row["origin"] == {"topic": letters.topic, "partition": 0, "offset": 7}
    facts = {name: row[name] for name in ("group", "attempts", "error", "fault", "redriven")}
    assert facts == {"group": "workers", "attempts": 3, "error": REASON, "fault": None, "redriven": False}
    head, _, line = letters("list").out.splitlines()
    assert head.split() == ["LETTER", "TOPIC", "PARTITION", "OFFSET", "GROUP", "ATTEMPTS", "WRITTEN", "ERROR"]
    assert line.split()[:6] == ["0:0", letters.topic, "0", "7", "workers", "3"]
    assert line.endswith(REASON)


def test_the_list_is_limited_and_filtered(letters: Letters) -> None:
    letters.write(7, headers=[{"key": "trace", "value": "1"}])
    letters.write(9, group="others")
    told = letters("list", "--json", "--max", "1")
    assert [row["origin"]["offset"] for row in told.json] == [7]
    assert told.err == "only the first 1; there are more\n"
    for where, offset in (("exists header.trace", 7), (f'header.{OFFSET} == "9"', 9), (f'header.{GROUP} != "x"', 7)):
        assert letters("list", "--json", "--where", where).json[0]["origin"]["offset"] == offset
    assert letters("list", "--where", "tag == 'x'").err == "no dead letters that were not redriven and match\n"


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ({TOPIC: ""}, f"no header {TOPIC}"),
        ({PARTITION: None}, f"no usable header {PARTITION}"),
        ({PARTITION: "-1"}, f"no usable header {PARTITION}"),
        ({PARTITION: "1" * 20}, f"no usable header {PARTITION}"),
        ({TOPIC: "itself"}, f"{TOPIC} names the dead letter topic itself"),
    ],
)
def test_a_letter_without_an_origin_is_listed_and_skipped(letters: Letters, told: dict[str, Any], fault: str) -> None:
    told = {name: letters.dead if value == "itself" else value for name, value in told.items()}
    letters.write(3, value="lost", told=told)
    letters.write(4, value="found")
    assert [row["fault"] for row in letters("list", "--json").json] == [fault, None]
    assert f"cannot be sent home: {fault}" in letters("list").out
    plan = letters("redrive")
    assert (
        plan.err == f"1 skipped: {fault}; --to TOPIC sends such letters\nnothing was changed; add --execute to do it\n"
    )
    assert letters.redrive() == {"executed": True, "topics": [letters.sent(sent=1)], "skipped": {fault: 1}}
    assert letters.left() == ["lost"]
    assert letters.redrive("--to", letters.topic)["topics"] == [letters.sent(sent=1)]
    assert sorted(value for _, value in letters.values()) == ["found", "lost"]
    assert letters.left() == []


def test_a_record_without_headers_is_a_letter_without_an_origin(letters: Letters) -> None:
    letters.shell("produce", letters.dead, stdin=b"plain\n")
    [row] = letters("list", "--json").json
    assert row["fault"] == f"no header {TOPIC}"
    assert row["origin"] == {"topic": None, "partition": None, "offset": None}
    assert letters.redrive()["topics"] == []


def test_one_letter_is_shown(letters: Letters) -> None:
    letters.shell("produce", letters.topic, "--partition", "1", stdin=b"zero\none\n")
    letters.write(1, partition=1)
    letters.write(9, partition=1)
    letters.write(5, partition=1, value="copy")
    pointer = letters("show", "1:0").json
    assert (pointer["value"], pointer["original"]["value"], pointer["original"]["offset"]) == (None, "one", 1)
    assert letters("show", "1:1").json["original"] is None
    copy = letters("show", "1:2").json
    assert copy["value"] == "copy"
    assert "original" not in copy
    for name in ("1:3", "0:0", "7:0", "1:9223372036854775807"):
        told = letters.shell("dlq", "show", letters.dead, name)
        assert (told.code, told.err) == (1, f"kpybroker: {letters.dead} has no record {name}\n")
    assert letters.shell("dlq", "show", letters.dead, "first").code == 2


def test_a_redrive_sends_each_record_once(letters: Letters) -> None:
    letters.shell("produce", letters.topic, "--partition", "1", stdin=b"zero\none\n")
    letters.write(0, partition=1)
    letters.write(0, partition=1)
    letters.write(0, partition=1, group="others")
    letters.write(5, value="copy", headers=[{"key": "trace", "value": "1"}])
    letters.write(99, partition=1)
    plan = letters("redrive", "--json").json
    assert plan == {"executed": False, "topics": [letters.sent(sent=3, repeated=1, gone=1)], "skipped": {}}
    assert len(letters.values()) == 2
    assert letters.redrive() == {**plan, "executed": True}
    assert sorted(letters.values()) == [(0, "copy"), (1, "one"), (1, "zero"), (1, "zero"), (1, "zero")]
    [home] = letters.shell("consume", letters.topic, "--partition", "0", "--from-beginning", "--json").lines
    assert home["headers"] == [{"key": "trace", "value": "1"}]
    assert letters.redrive() == {"executed": True, "topics": [], "skipped": {}}
    assert len(letters.values()) == 5
    assert letters("list", "--json").json == []
    assert [row["redriven"] for row in letters("list", "--json", "--all").json] == [True] * 5


def test_headers_of_the_last_delivery_are_dropped(letters: Letters) -> None:
    names = ("trace", "deliver-after", "deliver-at", "deliver-accepted", "deliver-offset", "__dlq.errors.exception")
    letters.write(0, value="x", headers=[{"key": name, "value": "1"} for name in names])
    letters.redrive()
    assert letters.rows()[0]["headers"] == [{"key": "trace", "value": "1"}]


def test_a_filter_leaves_holes(letters: Letters) -> None:
    for number in range(6):
        letters.write(number, value=str(number), key="odd" if number % 2 else "even")
    assert letters.redrive("--where", 'key == "odd"', "--max", "2")["topics"] == [letters.sent(sent=2)]
    assert letters.left() == ["0", "2", "4", "5"]
    assert letters.redrive("--where", 'key == "odd"')["topics"] == [letters.sent(sent=1)]
    assert letters.left() == ["0", "2", "4"]
    letters.write(6, value="6")
    assert letters.redrive("--max", "1")["topics"] == [letters.sent(sent=1)]
    assert letters.redrive()["topics"] == [letters.sent(sent=3)]
    assert sorted(value or "" for _, value in letters.values()) == list("0123456")
    assert letters.left() == []


def test_a_letter_without_an_offset_is_the_record(letters: Letters) -> None:
    """It is not compared with others, because nothing tells that they are the same."""
    letters.write(None, value="a")
    letters.write(None, value="a")
    letters.write(None)
    assert letters.redrive()["topics"] == [letters.sent(sent=3)]
    assert letters.values() == [(0, "a"), (0, "a"), (0, None)]


def test_a_topic_that_is_missing(letters: Letters) -> None:
    gone = f"gone-{letters.topic}"
    letters.write(0, value="first")
    letters.write(1, value="second", topic=gone)
    told = letters.shell("dlq", "redrive", letters.dead, "--execute")
    way_out = f"leave them out with --where 'header.{TOPIC} != \"{gone}\"'"
    assert told.code == 1
    assert told.err.startswith(
        f"kpybroker: the dead letter 0:1 is from the topic {gone}, which does not exist; create it"
    )
    assert told.err.endswith(f"{way_out}\n")
    assert letters.values() == []
    assert letters.redrive("--where", f'header.{TOPIC} != "{gone}"')["topics"] == [letters.sent(sent=1)]
    assert letters.redrive("--to", letters.topic)["topics"] == [letters.sent(sent=1)]
    assert [value for _, value in letters.values()] == ["first", "second"]
    told = letters.shell("dlq", "redrive", letters.dead, "--to", gone)
    assert told.code == 0, "there is nothing to send"
    letters.write(2, value="third")
    told = letters.shell("dlq", "redrive", letters.dead, "--to", gone)
    assert (told.code, told.err) == (
        1,
        f"kpybroker: there is no topic {gone}; create it with `kpybroker topics create {gone}`\n",
    )
    assert letters.shell("dlq", "redrive", letters.dead, "--to", letters.dead).code == 2


def test_a_partition_that_is_missing_is_chosen_by_the_key(letters: Letters) -> None:
    """Other topics, and topics that have shrunk, have other partitions."""
    letters.write(0, value="a", key="k", told={PARTITION: 7})
    letters.write(1, value="b", key="k", told={PARTITION: 8})
    letters.redrive()
    assert len({partition for partition, _ in letters.values()}) == 1
    other = f"other-{letters.topic}"
    letters.shell("topics", "create", other, "--partitions", "2")
    letters.write(2, value="c", key="k", partition=0)
    letters.write(2, value="d", key="k", partition=1)
    letters.redrive("--to", other)
    assert len({partition for partition, _ in letters.values(other)}) == 1


def test_a_topic_that_takes_no_records(letters: Letters, kpybroker: Broker) -> None:
    """The transaction is aborted: nothing of the page was sent, and readers of committed records need not wait."""
    view = f"view-{letters.topic}"
    letters.shell("topics", "create", view, "--view-of", letters.topic, "--where", "exists key")
    letters.write(0, value="a")
    letters.write(1, value="b", topic=view)
    told = letters.shell("dlq", "redrive", letters.dead, "--execute")
    assert told.code == 1
    assert told.err.startswith(f"kpybroker: {view}: the broker refuses: ")
    assert told.err.endswith(f"leave them out with --where 'header.{TOPIC} != \"{view}\"'\n")
    assert letters.left() == ["a", "b"]
    kpybroker.send(letters.topic, "later", partition=0)
    assert [record.value for record in kpybroker.expect(letters.topic, 1, committed_only=True)] == [b"later"]
    assert letters.redrive("--to", letters.topic)["topics"] == [letters.sent(sent=2)]


def test_records_of_a_retired_partition_are_found(letters: Letters) -> None:
    assert letters.shell("topics", "alter", letters.topic, "--partitions", "4").code == 0
    for partition in range(1, 4):
        lines = b"zero of %d\none of %d\n" % (partition, partition)
        letters.shell("produce", letters.topic, "--partition", str(partition), stdin=lines)
        letters.write(1, told={PARTITION: partition})
    assert letters.shell("topics", "alter", letters.topic, "--partitions", "1").code == 0
    for number in range(3):
        assert letters("show", f"0:{number}").json["original"]["value"] == f"one of {number + 1}"
    assert letters.redrive()["topics"] == [letters.sent(sent=3)]
    assert letters.values() == [(0, f"one of {partition}") for partition in range(1, 4)]


def test_letters_stay_redriven_when_their_partition_is_retired(letters: Letters) -> None:
    for number in range(4):
        letters.write(number, partition=1, value=str(number), key="odd" if number % 2 else "even")
    letters.redrive("--where", 'key == "odd"')
    assert letters.shell("topics", "alter", letters.dead, "--partitions", "1").code == 0
    assert letters.left() == []
    letters.dead += ".retired"
    assert letters.left() == ["0", "2"]
    assert letters.redrive()["topics"] == [letters.sent(sent=2)]
    assert letters.left() == []
    assert sorted(value or "" for _, value in letters.values()) == list("0123")


def test_a_trimmed_topic(letters: Letters) -> None:
    """Ranges below the start of the log are forgotten, so that they take no room."""
    for number in range(6):
        letters.write(number, value=str(number), key="odd" if number % 2 else "even")
    letters.redrive("--where", 'key == "odd"')
    letters.shell("topics", "trim", letters.dead, "--before-offset", "4", "--partition", "0", "--execute")
    assert letters.left() == ["4"]
    assert letters.redrive()["topics"] == [letters.sent(sent=1)]
    assert letters.left() == []


def test_a_compacted_topic(letters: Letters, kpybroker: Broker) -> None:
    """Letters that were left and are then removed are no gaps any more."""
    letters.shell("configs", "set", "--topic", letters.dead, "cleanup.policy=compact")
    for number in range(6):
        letters.write(number, value=str(number), key=f"{number}" if number % 2 else "even")
    letters.redrive("--where", 'key prefix "3" or key prefix "5"')
    kpybroker.compact(letters.dead)
    assert letters.left() == ["1", "4"], "0 and 2 have the key of 4"
    assert letters.redrive("--where", 'key == "even"')["topics"] == [letters.sent(sent=1)]
    assert letters.redrive()["topics"] == [letters.sent(sent=1)]
    assert sorted(value or "" for _, value in letters.values()) == ["1", "3", "4", "5"]
    assert letters.left() == []


def test_a_topic_that_was_created_again(letters: Letters) -> None:
    """Its letters are new ones, and none is taken for a redriven one."""
    for number in range(2):
        letters.write(number, value="a")
    letters.redrive()
    letters.shell("topics", "delete", letters.dead)
    letters.shell("topics", "create", letters.dead)
    letters.write(0, value="b")
    assert letters.redrive()["topics"] == [letters.sent(sent=1)]
    assert [value for _, value in letters.values()] == ["a", "a", "b"]


@pytest.mark.parametrize(
    ("offset", "metadata", "reason"),
    [(9, "", "ends at 1, but letters up to 8 were redriven"), (1, "of others", "that no redrive has committed")],
)
def test_an_offset_of_others_is_refused(letters: Letters, offset: int, metadata: str, reason: str) -> None:
    """Otherwise new letters could be taken for redriven ones."""
    letters.write(0, value="a")
    redriven = f"{letters.dead}-redrive"

    async def commit(client: Client) -> None:
        transactions = Transactions(client, redriven)
        await transactions.start()
        await transactions.commit_offsets(redriven, letters.dead, {0: (offset, metadata)})
        await transactions.end(commits=True)
        await group_facts.commits(client, redriven, stable=True)

    session.run(commit, letters.shell.bootstrap)
    for command in (["list"], ["redrive", "--execute"]):
        told = letters.shell("dlq", command[0], letters.dead, *command[1:])
        assert told.code == 1
        assert reason in told.err
        assert f"`kpybroker groups delete {redriven}` forgets what was redriven" in told.err
    assert letters.shell("groups", "delete", redriven).code == 0
    assert letters.redrive()["topics"] == [letters.sent(sent=1)]


def test_a_topic_that_is_unknown(shell: Shell, topic: str) -> None:
    for arguments in (("list", topic), ("show", topic, "0:0"), ("redrive", topic)):
        told = shell("dlq", *arguments)
        assert told.code == 1
        assert f"there is no topic {topic}" in told.err
