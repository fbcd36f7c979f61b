"""Tests of `produce` and `consume`: records are read as they were written, from any starting point."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, time
from pathlib import Path

import pytest

from kpybroker.cli.murmur2 import partition_of
from kpybroker.cli.times import parse_time
from kpybroker.errors import ConfigError
from kpybroker.testing import Broker
from tests.cli.shell import Answer, Shell, kpybroker_process


def values(answer: Answer) -> list[str | None]:
    assert (answer.code, answer.err) == (0, "")
    return [record["value"] for record in answer.lines]


def test_lines_come_back_in_order(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic)
    sent = shell(
        "produce",
        topic,
        stdin=b"one\ntwo\r\n\nlast without newline",
    )
    assert (sent.code, sent.out) == (0, "")
    assert sent.err.startswith("sent 4 records (")
    assert shell("consume", topic, "--from-beginning").out == "one\ntwo\n\nlast without newline\n"
    assert shell("consume", topic, "--from-beginning", "--max", "2").out == "one\ntwo\n"
    assert values(shell("consume", topic, "--offset", "2", "--json")) == ["", "last without newline"]
    assert values(shell("consume", topic, "--offset", "4", "--json")) == []


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_every_codec_and_acks(shell: Shell, topic: str, compression: str, acks: str) -> None:
    shell("topics", "create", topic)
    shell("produce", topic, "--compression", compression, "--acks", acks, stdin=b"a line\n" * 500)
    assert shell("consume", topic, "--from-beginning", "--follow", "--max", "500").out == "a line\n" * 500


def test_keys_go_to_the_same_partition_as_with_every_client(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic, "--partitions", "5")
    lines = "".join(f"key-{n}=value {n}=\n" for n in range(100)).encode()
    told = shell("produce", topic, "--key-separator", "=", "--json", stdin=lines).json
    assert (told["records"], sum(told["partitions"].values())) == (100, 100)
    records = shell("consume", topic, "--from-beginning", "--json").lines
    assert sorted(record["key"] for record in records) == sorted(f"key-{n}" for n in range(100))
    for record in records:
        assert record["partition"] == partition_of(record["key"].encode(), 5)
        assert record["value"] == "value " + record["key"].removeprefix("key-") + "="
    only = shell("consume", topic, "--from-beginning", "--partition", "3", "--key-separator", " -> ").out.splitlines()
    assert only == [f"{r['key']} -> {r['value']}" for r in records if r["partition"] == 3]


def test_headers_nulls_and_binary_values(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic)
    shell(
        *("produce", topic, "--key-separator", ":", "--null-marker", "NULL"),
        *("--header", "kind=test", "--header", "empty="),
        stdin=b"k\xff:\xfe\xfd\nk:NULL\n",
    )
    first, second = shell("consume", topic, "--from-beginning", "--json").lines
    assert base64.b64decode(first["key_base64"]) == b"k\xff"
    assert base64.b64decode(first["value_base64"]) == b"\xfe\xfd"
    assert first["headers"] == [{"key": "kind", "value": "test"}, {"key": "empty", "value": ""}]
    assert (second["key"], second["value"], second["offset"]) == ("k", None, 1)
    raw = shell("consume", topic, "--from-beginning").out.encode(errors="surrogateescape")
    assert raw == b"k\xff\t\xfe\xfd\nk\tnull\n"


def test_a_large_file_goes_in_many_batches(shell: Shell, topic: str, tmp_path: Path) -> None:
    shell("topics", "create", topic, "--partitions", "3")
    lines = [f"{n:06} {'x' * (n % 200)}" for n in range(20_000)]
    (tmp_path / "lines").write_text("\n".join(lines))
    told = shell("produce", topic, "--file", str(tmp_path / "lines"), "--json").json
    assert told["records"] == len(lines)
    assert len(told["partitions"]) == 3, "records without keys are spread, a batch at a time"
    assert sorted(values(shell("consume", topic, "--from-beginning", "--json"))) == lines  # type: ignore[type-var]


def test_from_a_time(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic, "--config", "retention.ms=-1")
    lines = "".join(json.dumps({"value": f"at {at}", "timestamp": at}) + "\n" for at in (1000, 2000, 3000))
    shell("produce", topic, "--json-lines", stdin=lines.encode())
    for at, found in (
        ("1000", ["at 1000", "at 2000", "at 3000"]),
        ("1001", ["at 2000", "at 3000"]),
        ("2000", ["at 2000", "at 3000"]),
        ("3000", ["at 3000"]),
        ("3001", []),
    ):
        assert values(shell("consume", topic, "--time", at, "--json")) == found
    assert values(shell("consume", topic, "--time", "1970-01-01", "--json")) == ["at 1000", "at 2000", "at 3000"]
    assert values(shell("consume", topic, "--time", "2999-01-01", "--json")) == []


def test_following_sees_what_arrives(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic, "--partitions", "2")
    shell("produce", topic, "--partition", "1", stdin=b"before\n")
    assert shell("consume", topic, "--from-beginning", "--follow", "--max", "1").out == "before\n"


def test_timestamps_are_parsed_as_printed() -> None:
    assert parse_time("1700000000000") == 1_700_000_000_000
    assert parse_time("2026-07-01T12:00:00+02:00") == parse_time("2026-07-01T10:00:00Z") == 1_782_900_000_000
    assert parse_time("2026-07-01T12:00:00.250Z") % 1000 == 250
    local = datetime(2026, 7, 1, 12).astimezone(UTC)
    assert parse_time("2026-07-01T12:00") == round(local.timestamp() * 1000)
    for wrong in (
        "",
        "tomorrow",
        "m",
        "5y",
        "5m ",
        "-5m",
        "-1",
        "99999999999999999999",
        "2026-13-01",
        "9" * 12 + "w" * 2,
    ):
        with pytest.raises(ConfigError):
            parse_time(wrong)


def test_times_are_read_relative_to_now() -> None:
    now = 1_782_900_000_123
    assert parse_time("now", now) == now
    assert parse_time("5m", now) == now - 5 * 60_000
    assert parse_time("1d2h3m4s5ms", now) == now - (86_400_000 + 2 * 3_600_000 + 3 * 60_000 + 4_005)
    assert parse_time("2w", now) == now - 14 * 86_400_000
    assert parse_time("999999999999w", now) == 0, "nothing is older than the epoch"
    today, yesterday = parse_time("today", now), parse_time("yesterday", now)
    assert yesterday < today <= now
    assert datetime.fromtimestamp(today / 1000).time() == datetime.fromtimestamp(yesterday / 1000).time() == time.min
    assert abs(parse_time("now") - parse_time("0s")) < 60_000


def test_lines_before_a_bad_one_are_sent(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic)
    answer = shell("produce", topic, "--key-separator", "=", stdin=b"a=1\nb=2\nnonsense\nc=3\n")
    assert answer.code == 1
    assert "line 3 has no '='" in answer.err
    assert shell("consume", topic, "--from-beginning").out == "a\t1\nb\t2\n"


@pytest.mark.parametrize(
    ("limits", "size_bytes", "why"),
    [
        (["max.message.bytes=1000"], 5000, "max.message.bytes is 1000 (MESSAGE_TOO_LARGE)"),
        (
            ["segment.bytes=1048576", "max.message.bytes=9000000"],
            1 << 20,
            "segment.bytes is 1048576 (RECORD_LIST_TOO_LARGE)",
        ),
    ],
)
def test_the_remedy_for_a_record_that_is_too_large_works(
    shell: Shell, topic: str, tmp_path: Path, limits: list[str], size_bytes: int, why: str
) -> None:
    file = tmp_path / "large"
    file.write_bytes(b"x" * size_bytes)
    shell("topics", "create", topic, *(word for limit in limits for word in ("--set", limit)))
    answer = shell("produce", topic, "--file", str(file))
    assert (answer.code, why in answer.err) == (1, True)
    told = re.search(r"`kpybroker (topics alter .*)` allows it", answer.err)
    assert told is not None
    assert shell(*told[1].split()).code == 0
    assert shell("produce", topic, "--file", str(file)).code == 0


def test_offsets_outside_a_log_are_refused(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic, "--partitions", "2")
    shell("produce", topic, "--partition", "0", stdin=b"a\nb\n")
    assert "holds 0 to 1" in shell("consume", topic, "--partition", "0", "--offset", "3").err
    assert "is empty and starts at 0" in shell("consume", topic, "--partition", "1", "--offset", "1").err
    needs_one = shell("consume", topic, "--offset", "1")
    assert (needs_one.code, "--partition" in needs_one.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "cause"),
    [
        (("consume", "t", "--offset", "-1"), 2, "'--offset'"),
        (("consume", "t", "--offset", "x"), 2, "'--offset'"),
        (("consume", "t", "--max", "0"), 2, "'--max'"),
        (("consume", "t", "--time", "noon"), 2, "noon"),
        (("consume", "t", "--time", "0", "--from-beginning"), 2, "--time"),
        (("consume", "t", "--tail", "0"), 2, "'--tail'"),
        (("consume", "t", "--tail", "10001"), 2, "'--tail'"),
        (("consume", "t", "--tail", "1", "--offset", "1"), 2, "--tail and --offset"),
        (("consume", "t", "--group", "g", "--tail", "1"), 2, "groups reset"),
        (("consume", "t", "--grep", "("), 2, "--grep"),
        (("consume", "t", "--where", "key = 'a'"), 2, "--where: expected one of ==, !=, in, prefix, found ="),
        (("consume", "t", "--format", "{nothing}"), 2, "{nothing}"),
        (("consume", "t", "--format", "{key:5}"), 2, "--format"),
        (("consume", "t", "--format", "%o %v"), 2, "write, for example, '{offset} {value}'"),
        (("consume", "t", "--format", ""), 2, "write, for example, '{offset} {value}'"),
        (("consume", "t", "--format", "{{offset}}"), 2, "write, for example, '{offset} {value}'"),
        (("consume", "t", "--format", "{"), 2, "--format"),
        (("consume", "t", "--format", "{key}", "--json"), 2, "--json"),
        (("produce", "t", "--json-lines", "--key-separator", "="), 2, "--key-separator"),
        (("produce", "t", "--acks", "2"), 2, "--acks"),
        (("produce", "t", "--compression", "rar"), 2, "rar"),
        (("produce", "t", "--header", "x"), 2, "NAME=VALUE"),
        (("produce", "t", "--key-separator", ""), 2, "--key-separator"),
        (("produce", "t", "--file", "/no/such/file"), 2, "/no/such/file"),
        (("produce", "t", "--file", "/"), 2, "/"),
        (("produce", "t", "--partition", "-1"), 2, "'--partition'"),
        (("produce",), 2, "TOPIC"),
        (("consume", "t", "--timeout", "0"), 2, "timeout"),
        (("consume", "t", "--bootstrap", "nowhere"), 2, "host:port"),
        (("consume", "t", "--bootstrap", "a:1,b"), 2, "host:port"),
        (("consume", "t", "--bootstrap", "::1:9092"), 2, "host:port"),
        (("consume", "t", "--bootstrap", "h:99999"), 2, "host:port"),
        (("consume", "t", "--bootstrap", "127.0.0.1:1"), 1, "kpybroker dev"),
    ],
    ids=str,
)
def test_each_error_is_one_line(shell: Shell, arguments: tuple[str, ...], code: int, cause: str) -> None:
    answer = shell(*arguments)
    assert answer.code == code
    assert answer.err.count("\n") == 1
    assert answer.err.startswith("kpybroker: ")
    assert cause in answer.err
    assert answer.out == ""


def test_json_is_one_object_per_line(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic)
    shell("produce", topic, stdin="grüße\n😀\n".encode())
    lines = shell("consume", topic, "--from-beginning", "--json").out.splitlines()
    assert [json.loads(line)["value"] for line in lines] == ["grüße", "😀"]


@pytest.mark.slow
def test_the_commands_in_the_help_work_on_a_fresh_broker() -> None:
    told = subprocess.run([sys.executable, "-m", "kpybroker", "--help"], capture_output=True, text=True, check=True)
    steps = re.findall(r"`kpybroker ([^`]*)`", " ".join(told.stdout.split()))
    dev, *commands = [step.split() for step in steps]
    assert dev == ["dev"]
    assert [command[0] for command in commands] == ["produce", "consume"]
    with Broker() as broker:
        environment = {**os.environ, "KPYBROKER_BOOTSTRAP": broker.bootstrap}
        for command, typed, printed in zip(commands, ("hello\n", ""), ("", "hello\n"), strict=True):
            ended = subprocess.run(
                [sys.executable, "-m", "kpybroker", *command],
                input=typed,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (ended.returncode, ended.stdout) == (0, printed), ended.stderr


def test_produce_creates_its_topic_and_reports_it(shell: Shell, topic: str) -> None:
    sent = shell("produce", topic, stdin=b"one\n")
    assert sent.code == 0
    assert sent.err.splitlines()[0] == f"created topic {topic}"
    again = shell("produce", topic, stdin=b"two\n")
    assert "created" not in again.err
    assert shell("consume", topic, "--from-beginning").out == "one\ntwo\n"


@pytest.mark.slow
def test_produce_creates_no_topic_if_the_broker_does_not_allow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker({"auto.create.topics.enable": False}) as broker:
        shell = Shell(broker.bootstrap, monkeypatch)
        answer = shell("produce", "orders", stdin=b"one\n")
        assert answer.code == 1
        assert answer.err == ("kpybroker: there is no topic orders; create it with `kpybroker topics create orders`\n")
        assert shell("topics", "list", "--json").json == []


def test_an_invalid_topic_name_is_refused(shell: Shell) -> None:
    for command in ("produce", "consume"):
        answer = shell(command, "no/topic", stdin=b"one\n")
        assert answer.code == 1
        assert "INVALID_TOPIC_EXCEPTION" in answer.err


@pytest.mark.parametrize("options", [(), ("--follow",), ("--from-beginning",), ("--offset", "0", "--partition", "0")])
def test_consume_waits_for_a_topic_that_does_not_exist_yet(
    shell: Shell, topic: str, kpybroker: Broker, options: tuple[str, ...]
) -> None:
    """The command reports at once that it waits, creates nothing, and misses no record."""
    command = [*("consume", topic, *options), "--max", "1", "--bootstrap", kpybroker.bootstrap]
    with kpybroker_process(*command) as reader:
        assert reader.stderr is not None
        assert reader.stderr.readline().startswith(f"waiting for topic {topic}, which does not exist yet")
        assert topic not in [row["topic"] for row in shell("topics", "list", "--json").json]
        shell("produce", topic, stdin=b"first\n")
        out, err = reader.communicate(timeout=60)
    assert (reader.returncode, out) == (0, "first\n"), err


def test_a_bounded_read_of_a_topic_that_is_never_created_ends(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic)
    answer = shell("consume", f"{topic}x", "--from-beginning", "--timeout", "0.2")
    assert answer.code == 1
    waiting, failed = answer.err.splitlines()
    assert waiting == f"waiting for topic {topic}x, which does not exist yet (did you mean {topic}?), for 0.2 s"
    assert failed.startswith(f"kpybroker: there is no topic {topic}x; did you mean {topic}?")
