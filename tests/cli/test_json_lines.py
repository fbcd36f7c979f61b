"""Tests of records as JSON lines: the output of `consume` can be produced again unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.cli.json_lines import TIMESTAMP_MAX, Outgoing, json_line, parse_json_line
from kpybroker.client.client import CommandFailed
from kpybroker.wire.records.batch import Record
from tests.cli.shell import Shell

CONTENT = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(str.encode)
NAMES = st.text(st.characters(codec="utf-8"), max_size=5)
RECORDS = st.builds(
    Record,
    offset=st.integers(0, 2**63 - 1),
    timestamp=st.integers(-1, TIMESTAMP_MAX),
    key=CONTENT,
    value=CONTENT,
    headers=st.lists(st.tuples(NAMES, CONTENT), max_size=4).map(tuple),
)


@given(RECORDS, st.integers(0, 2**31 - 1))
@settings(max_examples=300, deadline=None)
def test_written_lines_are_parsed_back(record: Record, partition: int) -> None:
    line = json_line("t", partition, record).encode()
    assert b"\n" not in line
    assert parse_json_line(line, 1) == Outgoing(record.key, record.value, record.headers, partition, record.timestamp)


def test_the_output_of_consume_is_produced_unchanged(shell: Shell, topic: str, tmp_path: Path) -> None:
    """Records are copied from one topic to another with their bytes, nulls, headers, partitions and times."""
    lines = [
        {"key": "a", "value": "text", "partition": 2, "timestamp": 1_700_000_000_000},
        {"key_base64": "/w==", "value": None, "partition": 0, "timestamp": 1_700_000_000_001},
        {"key": None, "value_base64": "/v0=", "headers": [{"key": "h", "value_base64": "/w=="}], "partition": 1},
        {"value": "grüße\n", "headers": [{"key": "h", "value": None}, {"key": "h", "value": ""}], "partition": 1},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    copy = f"{topic}-copy"
    for name in (topic, copy):
        shell("topics", "create", name, "--partitions", "3")
    assert shell("produce", topic, "--json-lines", stdin=text).code == 0
    first = shell("consume", topic, "--from-beginning", "--json").out
    assert shell("produce", copy, "--json-lines", stdin=first.encode()).code == 0
    second = shell("consume", copy, "--from-beginning", "--json").out
    assert second.replace(copy, topic) == first
    assert len(first.splitlines()) == len(lines)


def test_other_json_values_are_sent_as_json_text(shell: Shell, topic: str) -> None:
    shell("produce", topic, "--json-lines", stdin=b'{"value": {"id": 1, "tags": [true, null]}, "headers": {"a": "b"}}')
    (record,) = shell("consume", topic, "--from-beginning", "--json").lines
    assert record["value"] == '{"id":1,"tags":[true,null]}'
    assert record["headers"] == [{"key": "a", "value": "b"}]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b"text", "JSON"),
        (b"", "JSON"),
        (b"[]", "object"),
        (b'{"valu": 1}', "'valu'"),
        (b'{"key_base64": "?"}', "key_base64"),
        (b'{"key_base64": 1}', "key_base64"),
        (b'{"key": "a", "key_base64": "YQ=="}', "cannot be used together"),
        (b'{"partition": -1}', "partition"),
        (b'{"partition": 2147483648}', "partition"),
        (b'{"partition": true}', "partition"),
        (b'{"timestamp": "now"}', "timestamp"),
        (b'{"timestamp": -2}', "timestamp"),
        (b'{"headers": "a"}', "headers"),
        (b'{"headers": [{"value": "a"}]}', "header"),
        (b'{"headers": [' + b",".join([b'{"key": "a"}'] * 1001) + b"]}", "at most 1000"),
        (b'{"value": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "line 7"),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes) else value,
)
def test_an_invalid_line_is_named(line: bytes, cause: str) -> None:
    with pytest.raises(CommandFailed, match=cause) as failed:
        parse_json_line(line, 7)
    assert "line 7" in str(failed.value)


def test_a_partition_that_does_not_exist_is_named(shell: Shell, topic: str) -> None:
    answer = shell("produce", topic, "--json-lines", stdin=b'{"value": "a"}\n{"value": "b", "partition": 1}\n')
    assert (answer.code, "has no partition 1" in answer.err) == (1, True)
    assert shell("consume", topic, "--from-beginning").out == "a\n", "the lines before it were sent"
