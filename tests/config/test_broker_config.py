"""Tests of the typed view of settings: layers, defaults of topics, listeners, and descriptions that match Apache
Kafka's."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpybroker.config import Endpoint, LogSettings, parse_config
from kpybroker.config.advertised import with_hosts
from kpybroker.config.broker_keys import BROKER_KEYS, CHANGEABLE_KEYS
from kpybroker.config.describe import (
    BrokerLayers,
    Described,
    Source,
    describe_broker,
    describe_client_metrics,
    describe_default_broker,
    describe_group,
    describe_topic,
)
from kpybroker.config.documentation import NO_EFFECT
from kpybroker.config.key import Effect, Kind
from kpybroker.config.topic_keys import CLIENT_METRICS_KEYS, GROUP_KEYS, TOPIC_KEYS
from kpybroker.errors import ConfigError

DESCRIBED = (Path(__file__).parent / "described-4.3.1.tsv").read_text().splitlines()
STATIC = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:29192,CONTROLLER://127.0.0.1:29193",
    "controller.quorum.voters": "1@127.0.0.1:29193",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "/var/lib/kafka",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
OURS = {"group.initial.rebalance.delay.ms", "broker.session.timeout.ms"}
"""Our defaults that differ from Kafka's."""


def layers(
    static: dict[str, str] | None = None, broker: dict[str, str] | None = None, default: dict[str, str] | None = None
) -> BrokerLayers:
    dynamic = (default or {}), (broker or {})
    config = parse_config(static or {}).with_dynamic(*dynamic)
    return BrokerLayers(config, dynamic[1], dynamic[0])


def _java(value: str | None) -> str:
    return "null" if value is None else value


def as_the_oracle_prints(kind: str, entry: Described) -> str:
    synonyms = ", ".join(f"{s.name}={_java(s.value)}@{s.source.name}" for s in entry.synonyms)
    flags = (str(entry.read_only).lower(), str(entry.sensitive).lower(), Kind(entry.kind).name)
    return "\t".join([kind, entry.name, _java(entry.value), entry.source.name, *flags, f"[{synonyms}]"])


def test_a_broker_describes_itself_as_apache_kafka_does() -> None:
    shown = layers(STATIC)
    entries = {
        "BROKER": describe_broker(shown),
        "TOPIC": describe_topic(shown.config, {"retention.ms": "5000"}),
        "GROUP": describe_group(shown, {}),
        "CLIENT_METRICS": describe_client_metrics({}),
    }
    ours = {as_the_oracle_prints(kind, entry) for kind, listed in entries.items() for entry in listed}
    kafkas = set(DESCRIBED)
    differing = {line.split("\t")[1] for line in ours ^ kafkas}
    assert {name for name in differing if not name.startswith("kpybroker.")} == {
        *OURS,
        # with eligible leader replicas, Kafka sets a default for the whole cluster; this image has no features
        "min.insync.replicas",
    }


def test_log_settings_take_the_topics_then_the_brokers_then_the_default() -> None:
    config = parse_config({"log.retention.hours": "2", "log.roll.ms": "7000", "log.cleanup.policy": "compact"})
    assert config.log_settings().retention_ms == 2 * 3_600_000
    assert config.log_settings().segment_ms == 7000
    assert config.log_settings().compacted
    assert not config.log_settings().deletes
    overridden = config.log_settings({"retention.ms": "5", "cleanup.policy": "delete, compact"})
    assert (overridden.retention_ms, overridden.compacted, overridden.deletes) == (5, True, True)
    cluster = config.with_dynamic({"log.retention.ms": "9", "log.cleanup.policy": "delete"}, {})
    assert cluster.log_settings().retention_ms == 9
    assert cluster.log_settings().deletes
    broker = cluster.with_dynamic({"log.retention.ms": "9"}, {"log.retention.ms": "-5"})
    assert broker.log_settings().retention_ms == -1
    assert broker.with_dynamic({}, {}).log_settings() == config.log_settings()


def test_small_segments_are_for_tests() -> None:
    settings = parse_config().log_settings({"internal.segment.bytes": "65536"})
    assert settings.segment_bytes == 65536


def test_fsync_is_a_broker_setting() -> None:
    assert parse_config({"kpybroker.fsync": "always"}).log_settings().fsync_always
    with pytest.raises(ConfigError, match=r"kpybroker.fsync.*page-cache, always"):
        parse_config({"kpybroker.fsync": "sometimes"})


@pytest.mark.parametrize("name", sorted(set(TOPIC_KEYS) - {"internal.segment.bytes"}))  # this setting has no default
def test_a_topic_value_equal_to_the_default_changes_nothing(name: str) -> None:
    default = TOPIC_KEYS[name].default
    assert default is not None
    assert parse_config().log_settings({name: default}) == LogSettings()


def test_static_settings_cannot_be_changed_by_records() -> None:
    config = parse_config()
    changed = config.with_dynamic({"num.partitions": "9", "log.segment.bytes": "2000000", "no.such": "1"}, {})
    assert changed.num_partitions == config.num_partitions
    assert changed.log_settings().segment_bytes == 2_000_000


@pytest.mark.parametrize("bad", ["abc", "", "-99999999999999999999", "NaN", "9" * 5000])
def test_the_last_good_value_stays_if_a_dynamic_one_cannot_be_applied(bad: str) -> None:
    """No exception is raised, whatever the metadata contains."""
    good = parse_config().with_dynamic({"log.retention.ms": "9"}, {"message.max.bytes": "77777"})
    poisoned = dict.fromkeys(CHANGEABLE_KEYS, bad)
    texts = {"compression.type", "log.message.timestamp.type"}
    config = good.with_dynamic({"log.retention.ms": bad, **dict.fromkeys(texts, bad)}, {"message.max.bytes": bad})
    assert config == good
    everything = good.with_dynamic(poisoned, poisoned).log_settings(dict.fromkeys(TOPIC_KEYS, bad))
    assert (everything.retention_ms, everything.max_message_bytes) == (9, 77777)


def test_descriptions_follow_the_layers() -> None:
    shown = layers(
        {"log.retention.minutes": "10"},
        broker={"log.retention.ms": "-5", "listener.name.plaintext.max.connections": "5", "no.such": "x"},
        default={"log.retention.ms": "99"},
    )
    by_name = {entry.name: entry for entry in describe_broker(shown)}
    retention = by_name["log.retention.ms"]
    assert [(s.name, s.value, s.source) for s in retention.synonyms] == [
        ("log.retention.ms", "-5", Source.DYNAMIC_BROKER_CONFIG),
        ("log.retention.ms", "99", Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.retention.minutes", "10", Source.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "168", Source.DEFAULT_CONFIG),
    ]
    assert (by_name["no.such"].value, by_name["no.such"].sensitive, by_name["no.such"].read_only) == (None, True, True)
    assert by_name["listener.name.plaintext.max.connections"].value == "5"
    assert by_name["max.connections"].source is Source.DEFAULT_CONFIG
    topic = {entry.name: entry for entry in describe_topic(shown.config, {})}["retention.ms"]
    assert (topic.value, topic.source) == ("-1", Source.DYNAMIC_BROKER_CONFIG)
    assert [entry.name for entry in describe_default_broker(shown)] == ["log.retention.ms"]


def test_dynamic_only_settings_are_shown_where_they_were_set() -> None:
    name = "leader.replication.throttled.rate"
    assert name not in {entry.name for entry in describe_broker(layers())}
    shown = {entry.name: entry for entry in describe_broker(layers(default={name: "1000"}))}[name]
    assert (shown.value, shown.read_only, shown.sensitive) == ("1000", False, False)
    assert [synonym.source for synonym in shown.synonyms] == [Source.DYNAMIC_DEFAULT_BROKER_CONFIG]
    with pytest.raises(ConfigError, match="unknown setting"):
        parse_config({name: "1000"})


def test_secrets_are_never_shown() -> None:
    shown = layers({"ssl.key.password": "hush"}, broker={"listener.name.x.ssl.key.password": "hush"})
    assert "hush" not in repr(describe_broker(shown))


def test_every_setting_has_a_purpose_and_an_effect() -> None:
    shown = layers()
    topic, group, metrics = describe_topic(shown.config, {}), describe_group(shown, {}), describe_client_metrics({})
    for keys, entries in (
        (BROKER_KEYS, describe_broker(shown)),
        (TOPIC_KEYS, topic),
        (GROUP_KEYS, group),
        (CLIENT_METRICS_KEYS, metrics),
    ):
        for entry in entries:
            assert entry.doc, entry.name
            assert (NO_EFFECT in entry.doc) == (keys[entry.name].effect is Effect.HARMLESS), entry.name


def test_listeners() -> None:
    config = parse_config(
        {
            "listeners": "plaintext://:9092,OUTSIDE://[::1]:0,CONTROLLER://127.0.0.1:9093",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "advertised.listeners": "OUTSIDE://example.org:19092",
        }
    )
    assert config.listeners == (Endpoint("PLAINTEXT", "", 9092), Endpoint("OUTSIDE", "::1", 0))
    assert config.controller_listeners == (Endpoint("CONTROLLER", "127.0.0.1", 9093),)
    assert config.advertised_listeners == (Endpoint("PLAINTEXT", "", 9092), Endpoint("OUTSIDE", "example.org", 19092))


EVERYWHERE = "PLAINTEXT://:9092,CONTROLLER://0.0.0.0:9093"
ELSEWHERE = "PLAINTEXT://h4:9092,CONTROLLER://h3:1"


@pytest.mark.parametrize(
    ("settings", "broker", "controller"),
    [
        ({}, "", "127.0.0.1"),
        ({"controller.quorum.bootstrap.servers": "h1:9093"}, "", "127.0.0.1"),
        ({"controller.quorum.voters": "1@h1:9093"}, "", "h1"),
        ({"controller.quorum.voters": "1@h1:9093,2@h2:9093"}, "NAME", "h1"),
        ({"controller.quorum.bootstrap.servers": "h1:9093,h2:9093"}, "NAME", "NAME"),
        ({"controller.quorum.bootstrap.servers": "h2:19093"}, "NAME", "NAME"),
        ({"controller.quorum.bootstrap.servers": "h1:9093", "kpybroker.initial.controllers": "none"}, "NAME", "NAME"),
        ({"advertised.listeners": ELSEWHERE}, "h4", "h3"),
        ({"controller.quorum.voters": "1@h1:9093,2@h2:9093", "advertised.listeners": ELSEWHERE}, "h4", "h3"),
    ],
)
def test_the_advertised_host_of_listeners_without_a_host(
    settings: dict[str, str], broker: str, controller: str
) -> None:
    """A node that is not alone is known by the name of its machine, as in Apache Kafka."""
    properties = {"node.id": "1", "process.roles": "broker,controller", "listeners": EVERYWHERE, **settings}
    config = with_hosts(parse_config(properties), lambda: "NAME")
    (of_broker,), (of_controller,) = config.advertised_listeners, config.advertised_controller_listeners
    assert (of_broker.host, of_controller.host) == (broker, controller)
    assert of_broker.port == 9092
    assert of_controller.port == (1 if controller == "h3" else 9093)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listeners": "9092"}, "write NAME://host:port"),
        ({"listeners": "PLAINTEXT://:70000"}, "70000"),
        ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "name of its own"),
        ({"listeners": "PLAINTEXT://:1,CONTROLLER://:1"}, "same port 1"),
        ({"listeners": "HOME://:9092"}, "add HOME:PLAINTEXT"),
        ({"listeners": "CONTROLLER://:9092"}, "no listener for clients"),
        ({"listeners": ""}, "no listener for clients"),
        ({"listener.security.protocol.map": "A=B"}, "NAME:PROTOCOL"),
        ({"listeners": "SSL://:9092,CONTROLLER://:9093"}, "listener CONTROLLER is not in listener.security"),
        ({"listeners": "PLAINTEXT://:1,SSL://:2,CONTROLLER://:3"}, "listener CONTROLLER is not in listener.security"),
        ({"listeners": "SASL_PLAINTEXT://:9092", "process.roles": "broker"}, "it lacks CONTROLLER"),
        (
            {
                "listeners": "A://:9092",
                "listener.security.protocol.map": "A:PLAINTEXT",
                "process.roles": "broker",
                "controller.listener.names": "B",
            },
            "it lacks B",
        ),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "cannot connect to 0.0.0.0"),
        (
            {
                "advertised.listeners": "INSIDE://h:9092",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            },
            "INSIDE is not in listeners",
        ),
        ({"node.id": "-1"}, "node.id"),
        ({"node.id": "1", "broker.id": "2"}, "contradicts"),
        (
            {"log.cleaner.min.compaction.lag.ms": "2", "log.cleaner.max.compaction.lag.ms": "1"},
            r"min.compaction.lag.ms \(2\) is greater than log.cleaner.max.compaction.lag.ms \(1\)",
        ),
        ({"process.roles": "broker"}, "name the controllers"),
        ({"process.roles": "controller"}, "for clients, but process.roles lacks broker"),
        ({"process.roles": "broker", "controller.quorum.voters": "1@h:1"}, "process.roles lacks controller"),
        (
            {
                "process.roles": "broker",
                "controller.quorum.voters": "2@h:1",
                "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            },
            "a listener of controllers",
        ),
        ({"process.roles": "boss"}, "broker, controller"),
        ({"log.dirs": "a,,b"}, "log.dirs"),
        ({"controller.quorum.voters": "1@h:1,2@h:2"}, "no listener for them"),
        ({"controller.quorum.voters": "1@h:1,1@h:2"}, "named twice"),
        ({"controller.quorum.voters": "1@h:1,2@h:1"}, "the same address"),
        ({"controller.quorum.voters": ",".join(f"{n}@h:{n}" for n in range(1, 17))}, "at most 15"),
        ({"controller.quorum.bootstrap.servers": "h"}, "write host:port"),
        ({"controller.quorum.voters": "7@h:1"}, "node.id=1 is not a voter"),
        ({"controller.quorum.voters": "h:1"}, "id@host:port"),
        ({"num.partitions": "many"}, "Not a number of type INT"),
        ({"num.partitions": "0"}, "at least 1"),
        ({"auto.create.topics.enable": "yes"}, "true or false"),
        ({"log.segment.bytes": "99999999999"}, "Not a number of type INT"),
        ({"listener.name.plaintext.no.such": "1"}, "unknown setting"),
    ],
)
def test_invalid_values_are_refused_by_name(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_config(settings, "server.properties")


def test_broker_id_is_the_old_name_of_node_id() -> None:
    assert parse_config({"broker.id": "7"}).node_id == 7


def test_a_cluster_has_three_kinds_of_nodes() -> None:
    voters = {"controller.quorum.voters": "1@a:19093,2@b:19093,3@[::1]:19093"}
    both = parse_config({**voters, "node.id": "1", "listeners": "PLAINTEXT://:9092,CONTROLLER://:19093"})
    assert [(voter.node_id, voter.host, voter.port) for voter in both.controller_quorum_voters] == [
        (1, "a", 19093),
        (2, "b", 19093),
        (3, "::1", 19093),
    ]
    alone = parse_config({**voters, "node.id": "2", "process.roles": "controller", "listeners": "CONTROLLER://:19093"})
    assert alone.listeners == alone.advertised_listeners == ()
    broker = parse_config({**voters, "node.id": "7", "process.roles": "broker"})
    assert broker.controller_listeners == ()
    seeking = {"node.id": "8", "process.roles": "broker", "controller.quorum.bootstrap.servers": "a:1, b:2"}
    assert parse_config(seeking).controller_quorum_bootstrap_servers == (("a", 1), ("b", 2))
