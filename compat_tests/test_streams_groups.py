"""Streams groups (KIP-1071): Kafka Streams with group.protocol=streams, whose tasks and internal topics the
broker manages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from compat_tests.conftest import MakeTopic, Running, start_target
from compat_tests.dumps import dump
from compat_tests.streams_rounds import SETTINGS
from compat_tests.word_counts import await_counts, counting, send_lines

STORE = "KSTREAM-AGGREGATE-STATE-STORE-0000000003"


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest, target_name: str) -> Iterator[Running]:
    """A broker with short intervals for streams groups."""
    broker = start_target(target_name, {**SETTINGS, "offsets.topic.num.partitions": "5"})
    yield broker
    broker.stop()
    if not request.session.testsfailed:
        broker.remove()


@pytest.fixture
def application(unique: Callable[[], str]) -> str:
    """The id of a new application, which is also the id of its group."""
    return unique()


def test_words_are_counted(
    broker: Running, admin: AdminClient, make_topic: MakeTopic, application: str, tmp_path: Path
) -> None:
    lines, counts = make_topic(3), make_topic(2)
    wanted = send_lines(broker.bootstrap, lines)
    with counting(broker.bootstrap, application, lines, counts, tmp_path) as program:
        await_counts(broker.bootstrap, counts, wanted, program)
        program.stop()
    topics = admin.list_topics(timeout=10).topics
    store = f"{application}-{STORE}"
    assert len(topics[f"{store}-repartition"].partitions) == 3
    assert len(topics[f"{store}-changelog"].partitions) == 3
    assert settings_of(admin, f"{store}-changelog")["cleanup.policy"] == "compact"
    repartition = settings_of(admin, f"{store}-repartition")
    assert {name: repartition[name] for name in ("cleanup.policy", "segment.bytes", "retention.ms")} == {
        "cleanup.policy": "delete",
        "segment.bytes": "52428800",
        "retention.ms": "-1",
    }


def streams_groups(broker: Running, *arguments: str) -> list[list[str]]:
    """The words of each line that kafka-streams-groups prints."""
    told = broker.tool("kafka-streams-groups", *arguments).ok()
    return [line.split() for line in told.splitlines() if line.strip()]


def test_the_tool_shows_and_changes_an_application(
    broker: Running, make_topic: MakeTopic, application: str, tmp_path: Path
) -> None:
    lines, counts = make_topic(1), make_topic(2)
    wanted = send_lines(broker.bootstrap, lines)
    repartition = f"{application}-{STORE}-repartition"

    def describe(*more: str) -> list[list[str]]:
        return streams_groups(broker, "--describe", "--group", application, *more)

    with counting(broker.bootstrap, application, lines, counts, tmp_path) as program:
        await_counts(broker.bootstrap, counts, wanted, program)
        program.until(lambda: describe("--state")[1][3] == "Stable", "stable")
        assert [application] in streams_groups(broker, "--list")
        assert [application, "Stable"] in streams_groups(broker, "--list", "--state")
        header, row = describe("--state", "--verbose")
        assert header[:2] == ["GROUP", "COORDINATOR"]
        assert (row[0], row[-1]) == (application, "1")
        header, member = describe("--members")
        assert header == ["GROUP", "MEMBER", "PROCESS", "CLIENT-ID", "ASSIGNMENTS"]
        assert member[0] == application
        assert member[4:] == ["ACTIVE:", "0:[0];", "1:[0];"]
        program.until(lambda: {row[-1] for row in describe("--offsets")[1:]} == {"0"}, "without lag")
        assert [row[:3] for row in sorted(describe("--offsets")[1:])] == [
            [application, *place] for place in sorted([[lines, "0"], [repartition, "0"]])
        ]
        refused = broker.tool("kafka-streams-groups", "--delete", "--group", application).ok()
        assert f"GroupNotEmptyException: Streams group '{application}' is not EMPTY." in refused
        program.stop()
    assert [application, "Empty"] in streams_groups(broker, "--list", "--state")
    reset = ("--reset-offsets", "--group", application, "--input-topic", lines, "--to-earliest")
    assert [application, lines, "0", "0"] in streams_groups(broker, *reset, "--dry-run")
    assert [application, lines, "0", "0"] in streams_groups(broker, *reset, "--execute")
    deleted = streams_groups(broker, "--delete-offsets", "--group", application, "--input-topic", lines)
    assert [lines, "0", "Successful"] in deleted
    assert "was successful" in broker.tool("kafka-streams-groups", "--delete", "--group", application).ok()
    assert [application] not in streams_groups(broker, "--list")


def test_kafkas_dump_tool_reads_the_records(
    broker: Running, make_topic: MakeTopic, application: str, tmp_path: Path
) -> None:
    lines, counts = make_topic(1), make_topic(2)
    wanted = send_lines(broker.bootstrap, lines)
    with counting(broker.bootstrap, application, lines, counts, tmp_path) as program:
        await_counts(broker.bootstrap, counts, wanted, program)
        logs = sorted(Path(broker.data).glob("__consumer_offsets-*/*.log"))
        told = dump(logs, "--offsets-decoder")
        program.stop()
    mine = [line for line in told.splitlines() if f'"groupId":"{application}"' in line]
    kinds = {kind for line in mine for kind in re.findall(r'key: {"type":"(\d+)"', line)}
    assert kinds == {"17", "19", "20", "21", "22", "23"}
    assert any(f'"sourceTopics":["{lines}"]' in line for line in mine)


def settings_of(admin: AdminClient, topic: str) -> dict[str, str | None]:
    """The settings of a topic."""
    [told] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in told.result(10).items()}
