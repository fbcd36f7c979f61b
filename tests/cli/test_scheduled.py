"""`kpybroker scheduled`: the pending records of a topic."""

from __future__ import annotations

import json

import pytest

from tests.cli.shell import Shell


@pytest.fixture
def pending(shell: Shell, topic: str) -> str:
    """A topic with three pending records, and one that was delivered at once."""
    shell("topics", "create", topic, "--partitions", "2", "--set", "kpybroker.delivery.scheduled=true")
    lines = [
        {"key": "a", "value": "tomorrow", "partition": 0, "headers": [{"key": "deliver-after", "value": "1d"}]},
        {"key": "b", "value": "x" * 100, "partition": 1, "headers": [{"key": "deliver-after", "value": "1h"}]},
        {"key": None, "value": None, "partition": 0, "headers": [{"key": "deliver-after", "value": "7d"}]},
        {"key": "d", "value": "now", "partition": 0, "headers": []},
    ]
    told = shell("produce", topic, "--json-lines", stdin="\n".join(map(json.dumps, lines)).encode())
    assert told.code == 0, told.err
    return topic


def _names(shell: Shell, topic: str) -> list[str]:
    rows = shell("scheduled", "list", topic, "--json").json
    return [f"{row['partition']}:{row['offset']}" for row in rows]


def test_pending_records_are_listed_in_the_order_of_time(shell: Shell, pending: str) -> None:
    told = shell("scheduled", "list", pending)
    rows = [line.split() for line in told.out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["1:0", "0:0", "0:1"]
    assert rows[0][-2:] == ["b", "x" * 37 + "..."]
    assert rows[2][-2:] == ["null", "null"]
    assert rows[1][2:4] == ["23h", "59m"]
    first = shell("scheduled", "list", pending, "--json").json[0]
    assert (first["key"], first["headers"]) == ("b", [{"key": "deliver-after", "value": "1h"}])
    assert first["due"] - first["accepted"] == 3_600_000


def test_the_list_is_limited_and_filtered(shell: Shell, pending: str) -> None:
    told = shell("scheduled", "list", pending, "--max", "1")
    assert len(told.out.splitlines()) == 3
    assert told.err == "only the first 1 of 3\n"
    told = shell("scheduled", "list", pending, "--where", 'key == "a"', "--json")
    assert [row["value"] for row in told.json] == ["tomorrow"]
    assert shell("scheduled", "list", pending, "--where", 'key == "z"').err == "no pending records match\n"


def test_one_record_is_shown(shell: Shell, pending: str) -> None:
    told = shell("scheduled", "show", pending, "0:1")
    assert told.json["value"] is None
    told = shell("scheduled", "show", pending, "0:2")
    assert told.code == 1
    assert f"{pending} has no pending record 0:2: it was delivered, cancelled or never scheduled" in told.err


@pytest.mark.parametrize("name", ["", "1", ":", "0:", ":0", "0:-1", "0:x", "0:" + "1" * 40])
def test_a_name_that_cannot_be_read_is_refused(shell: Shell, name: str) -> None:
    told = shell("scheduled", "show", "t", name)
    assert told.code == 2
    assert "write PARTITION:OFFSET, such as 0:1234" in told.err


def test_records_are_cancelled_only_with_execute(shell: Shell, pending: str) -> None:
    told = shell("scheduled", "cancel", pending, "0:0", "1:0")
    assert "nothing was changed" in told.err
    assert _names(shell, pending) == ["1:0", "0:0", "0:1"]
    told = shell("scheduled", "cancel", pending, "0:0", "1:0", "0:0", "--execute", "--json")
    assert [row["offset"] for row in told.json["records"]] == [0, 0], "of two partitions, each once"
    assert _names(shell, pending) == ["0:1"]
    assert shell("scheduled", "cancel", pending, "0:0", "--execute").code == 1
    told = shell("scheduled", "cancel", pending, "--where", "tombstone", "--execute", "--json")
    assert [(row["offset"], row["cancelled"]) for row in told.json["records"]] == [(1, True)]
    assert shell("scheduled", "list", pending).err == "no pending records\n"


def test_a_cancelled_record_is_never_delivered(shell: Shell, topic: str) -> None:
    """It would be delivered before a later one."""
    shell("topics", "create", topic, "--set", "kpybroker.delivery.scheduled=true")
    for value, after in (("never", "4s"), ("at last", "5s")):
        line = json.dumps({"value": value, "headers": [{"key": "deliver-after", "value": after}]})
        assert shell("produce", topic, "--json-lines", stdin=line.encode()).code == 0
    assert shell("scheduled", "cancel", topic, "0:0", "--execute").code == 0
    values: list[str] = []
    while "at last" not in values:
        values = [row["value"] for row in shell("consume", topic, "--from-beginning", "--json").lines]
    assert values == ["at last"]


def test_a_record_that_is_due_soon_is_not_cancelled(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic, "--set", "kpybroker.delivery.scheduled=true")
    line = json.dumps({"value": "soon", "headers": [{"key": "deliver-after", "value": "1500ms"}]})
    assert shell("produce", topic, "--json-lines", stdin=line.encode()).code == 0
    told = shell("scheduled", "cancel", topic, "--where", 'key == "none" or not tombstone', "--execute")
    assert "too soon to cancel it" in told.err or "no pending records match" in told.err


def test_a_topic_without_scheduled_records_is_named(shell: Shell, topic: str) -> None:
    assert "there is no topic" in shell("scheduled", "list", topic).err
    shell("topics", "create", topic)
    assert "set kpybroker.delivery.scheduled=true on the topic" in shell("scheduled", "list", topic).err
    assert "name the records to cancel, or give --where" in shell("scheduled", "cancel", topic).err
