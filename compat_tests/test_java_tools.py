"""Tests of Kafka's own command-line tools, and so of the Java clients, all in one JVM."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compat_tests.clients import CLIENTS
from compat_tests.conftest import MakeTopic, Running, Settled
from compat_tests.vocabulary import CODECS, Codec, Message, closing, send_all
from oracle.tools import MAINS, Tools, alone

CLIENT = CLIENTS[0]


def fill(broker: Running, topic: str, count: int, partitions: int = 1) -> None:
    producer = CLIENT.producer(broker.bootstrap)
    with closing(producer):
        messages = [
            Message(f"{n}".encode(), timestamp_ms=1_000_000 + n, partition=n % partitions) for n in range(count)
        ]
        send_all(producer, topic, messages)


def consume(broker: Running, topic: str, *options: str, count: int, group: str | None = None) -> list[str]:
    """Lines of the console consumer, from the beginning."""
    grouped = ["--group", group] if group else []
    limits = ["--max-messages", str(count), "--timeout-ms", "30000"]
    ran = broker.tool("kafka-console-consumer", "--topic", topic, "--from-beginning", *grouped, *limits, *options)
    assert f"Processed a total of {count} messages" in ran.err, ran.err
    return ran.out.splitlines()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ["0", "1", "all", "idempotent"])
def test_console_producer_and_consumer(acks: str, codec: Codec, broker: Running, make_topic: MakeTopic) -> None:
    topic = make_topic()
    settings = ["--compression-codec", codec, "--command-property", f"acks={acks if acks != 'idempotent' else 'all'}"]
    settings += ["--command-property", f"enable.idempotence={str(acks == 'idempotent').lower()}"]
    reader = ["--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"]
    reader += ["--reader-property", "null.marker=NULL"]
    lines = [f"h1:a,h1:b\tkey {n}\tvalue {n}" if n % 5 else f"h:x\tkey {n}\tNULL" for n in range(500)]
    broker.tool("kafka-console-producer", "--topic", topic, *settings, *reader, stdin="\n".join(lines) + "\n").ok()
    shown = ["--formatter-property", "print.key=true", "--formatter-property", "print.headers=true"]
    shown += ["--formatter-property", "null.literal=NULL"]
    assert consume(broker, topic, *shown, count=500) == lines


def test_console_consumer_from_an_offset_inside_a_batch(broker: Running, make_topic: MakeTopic) -> None:
    topic = make_topic()
    fill(broker, topic, 100)
    where = ["--topic", topic, "--partition", "0", "--offset", "57", "--max-messages", "10", "--timeout-ms", "30000"]
    assert broker.tool("kafka-console-consumer", *where).out.splitlines() == [str(n) for n in range(57, 67)]


def test_topics(broker: Running, unique: Callable[[], str], settled: Settled) -> None:
    name = unique()
    settings = ["--partitions", "3", "--replication-factor", "1", "--config", "retention.ms=123456"]
    broker.tool("kafka-topics", "--create", "--topic", name, *settings).ok()
    settled(lambda: name in broker.tool("kafka-topics", "--list").ok().split())
    described = broker.tool("kafka-topics", "--describe", "--topic", name).ok()
    assert "PartitionCount: 3" in described
    assert "ReplicationFactor: 1" in described
    assert "retention.ms=123456" in described
    assert re.search(r"TopicId: [A-Za-z0-9_-]{22}", described)
    assert len(re.findall(r"Leader: (\d+)\s+Replicas: \1\s+Isr: \1\s", described)) == 3
    assert broker.tool("kafka-topics", "--create", "--topic", name, *settings).code == 1
    broker.tool("kafka-topics", "--create", "--if-not-exists", "--topic", name, *settings).ok()
    broker.tool("kafka-topics", "--alter", "--topic", name, "--partitions", "5").ok()
    settled(lambda: "PartitionCount: 5" in broker.tool("kafka-topics", "--describe", "--topic", name).ok())
    assert broker.tool("kafka-topics", "--alter", "--topic", name, "--partitions", "2").code == 1
    for condition in ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions"):
        assert name not in broker.tool("kafka-topics", "--describe", condition).ok()
    assert name in broker.tool("kafka-topics", "--describe", "--topics-with-overrides").ok()
    broker.tool("kafka-topics", "--delete", "--topic", name).ok()
    settled(lambda: name not in broker.tool("kafka-topics", "--list").ok().split())
    missing = broker.tool("kafka-topics", "--describe", "--topic", name)
    assert missing.code == 1
    assert "does not exist" in missing.out + missing.err


def test_configs(broker: Running, make_topic: MakeTopic, settled: Settled) -> None:
    topic = make_topic()
    of_topic = ["--entity-type", "topics", "--entity-name", topic]
    broker.tool("kafka-configs", "--alter", *of_topic, "--add-config", "retention.ms=777,segment.ms=60000").ok()
    settled(lambda: "retention.ms=777" in broker.tool("kafka-configs", "--describe", *of_topic).ok())
    described = broker.tool("kafka-configs", "--describe", *of_topic).ok()
    assert "DYNAMIC_TOPIC_CONFIG:segment.ms=60000" in described
    broker.tool("kafka-configs", "--alter", *of_topic, "--delete-config", "retention.ms").ok()
    settled(lambda: "retention.ms" not in broker.tool("kafka-configs", "--describe", *of_topic).ok())
    everything = broker.tool("kafka-configs", "--describe", "--all", *of_topic).ok()
    assert "retention.ms=604800000" in everything
    assert len(everything.splitlines()) > 25
    assert broker.tool("kafka-configs", "--alter", *of_topic, "--add-config", "no.such=1").code == 1
    assert broker.tool("kafka-configs", "--alter", *of_topic, "--add-config", "segment.ms=soon").code == 1
    of_broker = ["--entity-type", "brokers", "--entity-name", "1"]
    assert "log.retention.hours=168" in broker.tool("kafka-configs", "--describe", "--all", *of_broker).ok()


def test_groups(broker: Running, make_topic: MakeTopic, unique: Callable[[], str]) -> None:
    topic, group = make_topic(partitions=2), unique()
    fill(broker, topic, 40, partitions=2)
    assert len(consume(broker, topic, group=group, count=30)) == 30

    def groups(*options: str) -> str:
        return broker.tool("kafka-consumer-groups", *options).ok()

    def lags(text: str) -> dict[int, tuple[int, int, int]]:
        """partition -> (committed, end, lag)"""
        rows = re.findall(rf"^{group}\s+{topic}\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s", text, re.MULTILINE)
        return {int(partition): (int(at), int(end), int(lag)) for partition, at, end, lag in rows}

    assert group in groups("--list").split()
    described = lags(groups("--describe", "--group", group))
    assert {at + lag for at, _, lag in described.values()} == {20}
    assert sum(lag for _, _, lag in described.values()) == 10
    assert re.search(rf"{group}\s+.*Empty\s+0", groups("--describe", "--group", group, "--state"))
    of_topic = ["--group", group, "--topic", topic]
    plan = groups("--reset-offsets", *of_topic, "--to-earliest", "--dry-run")
    assert re.search(rf"{group}\s+{topic}\s+0\s+0", plan)
    groups("--reset-offsets", "--group", group, "--topic", f"{topic}:0", "--to-offset", "5", "--execute")
    groups("--reset-offsets", "--group", group, "--topic", f"{topic}:1", "--shift-by", "-100", "--execute")
    assert lags(groups("--describe", "--group", group)) == {0: (5, 20, 15), 1: (0, 20, 20)}
    assert len(consume(broker, topic, group=group, count=35)) == 35
    groups("--delete-offsets", "--group", group, "--topic", topic)
    assert lags(groups("--describe", "--group", group)) == {}
    groups("--delete", "--group", group)
    assert group not in groups("--list").split()


def test_get_offsets(broker: Running, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    fill(broker, topic, 11, partitions=2)

    def offsets(*options: str) -> list[str]:
        return sorted(broker.tool("kafka-get-offsets", "--topic", topic, *options).ok().split())

    assert offsets() == [f"{topic}:0:6", f"{topic}:1:5"]
    assert offsets("--time", "earliest") == [f"{topic}:0:0", f"{topic}:1:0"]
    assert offsets("--time", "-1", "--partitions", "1") == [f"{topic}:1:5"]
    assert offsets("--time", "max-timestamp", "--partitions", "0") == [f"{topic}:0:5"]
    assert offsets("--time", "1000000", "--partitions", "0") == [f"{topic}:0:0"]


def test_delete_records(broker: Running, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic()
    fill(broker, topic, 20)
    wanted = tmp_path / "offsets.json"
    partition = {"topic": topic, "partition": 0, "offset": 7}
    wanted.write_text(json.dumps({"partitions": [partition], "version": 1}))
    said = broker.tool("kafka-delete-records", "--offset-json-file", str(wanted)).ok()
    assert f"partition: {topic}-0\tlow_watermark: 7" in said
    assert broker.tool("kafka-get-offsets", "--topic", topic, "--time", "earliest").ok().split() == [f"{topic}:0:7"]
    assert consume(broker, topic, count=13) == [str(n) for n in range(7, 20)]
    broker.stop()
    broker.restart()
    assert broker.tool("kafka-get-offsets", "--topic", topic, "--time", "earliest").ok().split() == [f"{topic}:0:7"]


def test_log_dirs(broker: Running, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    fill(broker, topic, 10)
    said = broker.tool("kafka-log-dirs", "--describe", "--topic-list", topic).ok()
    [found] = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    [node] = found["brokers"]
    [directory] = node["logDirs"]
    assert directory["logDir"] == str(broker.data)
    assert directory["error"] is None
    sizes = {one["partition"]: one["size"] for one in directory["partitions"]}
    assert sizes.keys() == {f"{topic}-0", f"{topic}-1"}
    assert sizes[f"{topic}-0"] > 0
    assert sizes[f"{topic}-1"] == 0


@pytest.mark.parametrize("codec", CODECS)
def test_producer_perf_test(codec: Codec, broker: Running, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3)
    settings = [f"bootstrap.servers={broker.bootstrap}", f"compression.type={codec}", "linger.ms=5"]
    load = ["--num-records", "20000", "--record-size", "200", "--throughput", "-1"]
    command = ["--topic", topic, *load, "--command-property", *settings]
    ran = broker.tool("kafka-producer-perf-test", *command)
    assert re.search(r"20000 records sent, .* records/sec", ran.ok())
    ends = broker.tool("kafka-get-offsets", "--topic", topic).ok().split()
    assert sum(int(line.rpartition(":")[2]) for line in ends) == 20_000


def test_consumer_perf_test(broker: Running, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3)
    fill(broker, topic, 6000, partitions=3)
    said = broker.tool("kafka-consumer-perf-test", "--topic", topic, "--num-records", "6000").ok()
    assert re.search(r", 6000, ", said)


def test_broker_api_versions(broker: Running) -> None:
    said = broker.tool("kafka-broker-api-versions").ok()
    rows = re.findall(r"(\w+)\((\d+)\): (\S+)(?: to (\S+))? \[usable: (\d+)", said)
    assert ("Produce", "0", "0", "13", "13") in rows
    assert ("Fetch", "1", "4", "18", "18") in rows
    assert ("ApiVersions", "18", "0", "4", "4") in rows
    assert len(rows) >= 30
    assert "UNKNOWN" not in said


def test_features(broker: Running) -> None:
    said = broker.tool("kafka-features", "describe").ok()
    assert re.search(r"Feature: metadata.version\s.*FinalizedVersionLevel: 4.3-IV0", said)


def test_verifiable_clients(broker: Running, make_topic: MakeTopic, unique: Callable[[], str]) -> None:
    """Each line that they print is an event: every sent record is acknowledged, consumed and committed."""
    topic = make_topic()

    def events(name: str, *options: str) -> list[dict[str, Any]]:
        said = alone(name, "--topic", topic, "--max-messages", "50", *options, bootstrap=broker.bootstrap).ok()
        return [json.loads(line) for line in said.splitlines()]

    sent = events("kafka-verifiable-producer", "--acks", "-1", "--value-prefix", "7")
    assert [event["offset"] for event in sent if event["name"] == "producer_send_success"] == list(range(50))
    [summary] = [event for event in sent if event["name"] == "tool_data"]
    assert (summary["sent"], summary["acked"]) == (50, 50)
    read = events("kafka-verifiable-consumer", "--group-id", unique(), "--reset-policy", "earliest")
    assert sum(event["count"] for event in read if event["name"] == "records_consumed") == 50
    committed = [event for event in read if event["name"] == "offsets_committed"]
    assert all(event["success"] for event in committed)
    assert committed[-1]["offsets"] == [{"topic": topic, "partition": 0, "offset": 50}]
    assert "shutdown_complete" in [event["name"] for event in read]


def test_a_jvm_of_the_tools_that_runs_out_of_heap_says_so() -> None:
    tools = Tools(heap="32m")
    with pytest.raises(ChildProcessError, match=r"exit code 3\n(.*\n)*.*OutOfMemoryError"):
        tools.run(MAINS["kafka-topics"], ["--version"], stdin="x" * (64 << 20), timeout_s=60)
    assert not tools.alive
