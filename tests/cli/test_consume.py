"""Tests of `consume`: its first record, the records that it prints, their format, and the end of the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from confluent_kafka import Producer

from kpybroker.testing import Broker
from tests.cli.shell import Shell, kpybroker_process

pytestmark = pytest.mark.slow

WAIT_S = 60


def test_the_last_records(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic, "--partitions", "2")
    lines = "".join(f'{{"value": "{n}", "partition": {n % 2}, "timestamp": {1000 + n}}}\n' for n in range(20))
    assert shell("produce", topic, "--json-lines", stdin=lines.encode()).code == 0
    assert shell("consume", topic, "--tail", "3").out == "17\n18\n19\n"
    assert shell("consume", topic, "--tail", "1").out == "19\n"
    assert shell("consume", topic, "--tail", "100").out == "".join(f"{n}\n" for n in range(20))
    assert shell("consume", topic, "--tail", "2", "--partition", "0").out == "16\n18\n"
    assert shell("consume", topic, "--tail", "5", "--max", "2").out == "15\n16\n"
    assert shell("consume", topic, "--tail", "2", "--follow", "--max", "2").out == "18\n19\n"


def test_the_last_records_before_markers_of_transactions(kpybroker: Broker, shell: Shell, topic: str) -> None:
    """Markers have offsets, too, so the last offsets are not the offsets of the last records."""
    shell("produce", topic, stdin=b"a\nb\nc\n")
    producer = Producer({"bootstrap.servers": kpybroker.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for value in ("d", "e"):
        producer.begin_transaction()
        producer.produce(topic, value=value)
        producer.commit_transaction()
    assert shell("consume", topic, "--tail", "4").out == "b\nc\nd\ne\n"


def test_a_group_continues_where_it_stopped(shell: Shell, topic: str, group: str) -> None:
    shell("produce", topic, stdin=b"a\nb\nc\nd\n")
    first = ("consume", topic, "--group", group, "--from-beginning")
    assert shell(*first, "--max", "3").out == "a\nb\nc\n"
    (row,) = shell("groups", "describe", group, "--json").json["offsets"]
    assert (row["committed"], row["lag"]) == (3, 1), "offsets of records that were not printed are not committed"
    assert shell(*first).out == "d\n"
    assert shell(*first).out == ""
    shell("produce", topic, stdin=b"e\n")
    assert shell("consume", topic, "--group", group, "--max", "1").out == "e\n"


@pytest.mark.parametrize("options", [(), ("--from-beginning", "--follow"), ("--tail", "1", "--follow")], ids=str)
def test_at_the_end_of_the_topic_it_reports_that_it_waits(
    options: tuple[str, ...], kpybroker: Broker, shell: Shell, topic: str
) -> None:
    """The line is printed once, and only on a terminal."""
    shell("produce", topic, stdin=b"one\n")
    ours, theirs = os.openpty()
    command = ("consume", topic, *options, "--bootstrap", kpybroker.bootstrap)
    process = subprocess.Popen(
        [sys.executable, "-m", "kpybroker", *command], stdout=subprocess.PIPE, stderr=theirs, text=True
    )
    os.close(theirs)
    with open(ours, "rb", buffering=0) as terminal:
        told = f"waiting for records of {topic}; Ctrl-C ends\r\n".encode()
        assert terminal.readline() == told
        shell("produce", topic, stdin=b"two\n")
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(1 + bool(options))] == ["one\n", "two\n"][-1 - bool(options) :]
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=WAIT_S)
        assert (out, process.returncode) == ("", 0)
        # the error of a terminal that no other process has open any more
        with pytest.raises(OSError, match="Input/output error"):
            terminal.read(1)


def test_a_reader_that_stops_at_the_end_reports_no_wait(shell: Shell, topic: str) -> None:
    shell("produce", topic, stdin=b"one\n")
    assert shell("consume", topic, "--from-beginning") == (0, "one\n", "")
    assert shell("consume", topic, "--from-beginning", "--follow", "--max", "1") == (0, "one\n", "")


def test_only_matching_records_are_printed(shell: Shell, topic: str) -> None:
    shell("produce", topic, "--key-separator", "=", stdin=b"error=one\nok=two\nok=an error\n")
    assert shell("consume", topic, "--from-beginning", "--grep", "err.r").out == "error\tone\nok\tan error\n"
    assert shell("consume", topic, "--from-beginning", "--grep", "^ok$", "--max", "1").out == "ok\ttwo\n"
    assert shell("consume", topic, "--from-beginning", "--where", "key == 'ok'").out == "ok\ttwo\nok\tan error\n"
    both = shell("consume", topic, "--from-beginning", "--where", "key == 'ok'", "--grep", "err.r")
    assert both.out == "ok\tan error\n"


def test_a_format(shell: Shell, topic: str) -> None:
    line = b'{"key": "k", "value": "v", "timestamp": 1700000000123, "headers": {"a": "1", "b": null}}'
    assert shell("produce", topic, "--json-lines", stdin=line).code == 0
    told = shell(
        *("consume", topic, "--from-beginning", "--format"),
        r"{topic} {partition}@{offset} {timestamp} {time}\t{key}={value} {{{headers}}}",
    )
    assert told.out == f"{topic} 0@0 1700000000123 2023-11-14T22:13:20.123Z\tk=v {{a=1,b=null}}\n"


def test_relative_times(shell: Shell, topic: str) -> None:
    shell("produce", topic, "--json-lines", stdin=b'{"value": "old", "timestamp": 1}\n{"value": "new"}\n')
    assert shell("consume", topic, "--time", "1h").out == "new\n"
    assert shell("consume", topic, "--time", "yesterday").out == "new\n"


@pytest.mark.parametrize("command", [("consume", "TOPIC", "--tail", "1", "--follow"), ("groups", "list", "--watch")])
def test_following_ends_when_the_reader_is_gone(
    kpybroker: Broker, shell: Shell, topic: str, command: tuple[str, ...]
) -> None:
    """The command ends as in `| head -1`, although no further record arrives whose write would fail."""
    shell("produce", topic, stdin=b"a\n")
    shell("consume", topic, "--group", topic, "--from-beginning", "--max", "1")  # without a group, --watch is silent
    arguments = [topic if word == "TOPIC" else word for word in command]
    process = kpybroker_process(*arguments, "--bootstrap", kpybroker.bootstrap)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(WAIT_S) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_a_user_at_a_terminal_is_told_what_to_type(kpybroker: Broker, topic: str) -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kpybroker", "produce", topic, "--bootstrap", kpybroker.bootstrap],
        stdin=theirs,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    assert process.stderr is not None
    assert process.stderr.readline() == "type records, one per line; Ctrl-D ends\n"
    os.write(ours, b"hello\n\x04")
    said = process.communicate(timeout=WAIT_S)[1]
    os.close(ours)
    assert process.returncode == 0
    assert "sent 1 record (5 bytes)" in said
