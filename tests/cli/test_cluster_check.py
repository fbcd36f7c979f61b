"""Tests of `kpybroker cluster check`; the compat tests run it on Apache Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kpybroker.cli import cluster_check
from kpybroker.cli.cluster_check import IGNORED, MISSING, PREVENTS, UNKNOWN, Finding
from kpybroker.cli.cluster_facts import NodeFacts, QuorumFacts
from kpybroker.config.resource_type import ResourceType
from kpybroker.testing import Broker, Cluster
from kpybroker.wire.api import API
from kpybroker.wire.rpc import api_versions, describe_configs
from tests.cli.shell import Shell

TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(in_thread=True) as broker:
        yield broker


def test_nothing_prevents_a_cluster_of_its_own_kind(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell(broker.bootstrap, monkeypatch)
    broker.topic("orders", config={"cleanup.policy": "compact"})
    told = shell("cluster", "check")
    seen = "1 broker, 1 topic, 0 groups"
    assert (told.code, told.out) == (0, f"{seen}: nothing prevents kpybroker from serving them\n")
    assert told.err.startswith("not checked: which APIs the clients of the cluster use")
    broker.topic("orders", config={"preallocate": True})
    [found] = json.loads(shell("cluster", "check", "--json").out)
    assert (found["level"], found["what"]) == (IGNORED, "preallocate=true")
    told = shell("cluster", "check")
    assert "LEVEL" in told.out
    assert told.out.endswith("0 groups: nothing that was found prevents kpybroker from serving them\n")
    assert shell("cluster", "--json").out.startswith('{"cluster": ')


def test_the_settings_of_a_stopped_broker_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(2, in_thread=True) as cluster:
        cluster.kill(2)
        told = Shell(cluster.bootstrap_of(1), monkeypatch)("cluster", "check", "--json")
        found = [each for each in json.loads(told.out) if each["level"] == UNKNOWN]
        whats = [(each["where"], each["what"]) for each in found]
        assert whats == [("broker 2", "its settings"), ("cluster", "its groups")]
        assert "unreachable" in found[0]["why"]


def setting(
    name: str, value: str | None, source: int = 4, *, is_sensitive: bool = False
) -> describe_configs.DescribeConfigsResourceResult:
    return describe_configs.DescribeConfigsResourceResult(
        name=name, value=value, config_source=source, is_sensitive=is_sensitive
    )


@pytest.mark.parametrize(
    ("kind", "row", "level", "why"),
    [
        (BROKER, setting("config.providers", "file"), PREVENTS, "Java classes are not run"),
        (BROKER, setting("create.topic.policy.class.name", "org.example.Policy"), PREVENTS, "Java classes"),
        (
            BROKER,
            setting("listener.name.external.principal.builder.class", "org.example.B"),
            PREVENTS,
            "Java classes are not run",
        ),
        (BROKER, setting("num.partitons", "3"), PREVENTS, "no such setting here; did you mean num.partitions?"),
        (BROKER, setting("zookeeper.connect", "h:2181"), PREVENTS, "ZooKeeper was removed in Kafka 4.0"),
        (BROKER, setting("log.message.format.version", "3.0"), PREVENTS, "the record format is v2; remove it"),
        (BROKER, setting("no.such", "1", 2), IGNORED, "prevents no start"),
        (BROKER, setting("no.such", "1", 3), IGNORED, "prevents no start"),
        (BROKER, setting("log.cleaner.threads", "abc", 2), IGNORED, "prevents no start"),
        (BROKER, setting("config.providers", "file", 3), IGNORED, "prevents no start"),
        (BROKER, setting("num.network.threads", "5"), IGNORED, "it has no effect here"),
        (BROKER, setting("ssl.key.password", None, is_sensitive=True), UNKNOWN, "secret"),
        (BROKER, setting("confluent.license", "x"), None, ""),
        (BROKER, setting("num.partitions", "3"), None, ""),
        (BROKER, setting("num.network.threads", "5", 5), None, "a default"),
        (TOPIC, setting("remote.storage.enable", "true", 1), PREVENTS, "tier"),
        (TOPIC, setting("retention.ms", "5", 1), None, ""),
        (TOPIC, setting("num.network.threads", "5", 4), None, "a setting of the broker"),
    ],
)
def test_a_setting_of_the_cluster(
    kind: ResourceType, row: describe_configs.DescribeConfigsResourceResult, level: str | None, why: str
) -> None:
    found = list(
        cluster_check.of_settings(kind, [describe_configs.DescribeConfigsResult(resource_name="7", configs=[row])])
    )
    assert [each.level for each in found] == ([] if level is None else [level])
    for each in found:
        assert each.where == f"{'broker' if kind == BROKER else 'topic'} 7"
        assert why in each.why


def test_settings_that_contradict_each_other() -> None:
    """The same as at a start; if secrets are missing, these may be the cause."""
    rows = [setting("listeners", "SASL_PLAINTEXT://127.0.0.1:9092"), setting("sasl.enabled.mechanisms", "GSSAPI")]
    for hidden, level in (([], PREVENTS), ([setting("ssl.key.password", None, is_sensitive=True)], UNKNOWN)):
        told = describe_configs.DescribeConfigsResult(resource_name="7", configs=[*rows, *hidden])
        found = list(cluster_check.of_settings(BROKER, [told]))
        assert (found[-1].level, found[-1].what) == (level, "all settings")
        assert "GSSAPI" in found[-1].why


def test_a_broker_of_kpybroker_with_logins_has_started_with_its_settings() -> None:
    """It does not list the settings of its listeners' logins, and lists its own settings even unset."""
    rows = [
        setting("listeners", "SASL_PLAINTEXT://127.0.0.1:9092"),
        setting("inter.broker.listener.name", "SASL_PLAINTEXT"),
        setting("sasl.enabled.mechanisms", "PLAIN"),
        setting("sasl.mechanism.inter.broker.protocol", "PLAIN"),
    ]
    for own, levels in (([], [PREVENTS]), ([setting("kpybroker.http.port", None, 5)], [])):
        told = describe_configs.DescribeConfigsResult(resource_name="7", configs=[*rows, *own])
        assert [each.level for each in cluster_check.of_settings(BROKER, [told])] == levels


def test_features_and_apis_that_are_not_served() -> None:
    levels = {"metadata.version": 27, "group.version": 1, "queues.version": 2, "other.version": 0}
    told = api_versions.Response(
        finalized_features=[
            api_versions.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in levels.items()
        ],
        api_keys=[api_versions.ApiVersion(api_key=9999)],
    )
    assert list(cluster_check.of_features(told)) == [
        Finding(PREVENTS, "cluster", "metadata.version=27", "this version serves level 30 to 30"),
        Finding(PREVENTS, "cluster", "queues.version=2", "this version serves no level of it"),
    ]
    assert [(each.level, each.what) for each in cluster_check.of_apis(told)] == [(MISSING, "API 9999")]


def test_versions_of_apis_that_are_not_served() -> None:
    """Only those that the cluster serves, and kpybroker does not."""
    produce, fetch = (next(row for row in API if row.name == name) for name in ("Produce", "Fetch"))

    def found(*, beyond: int) -> list[Finding]:
        ranges = [(row.key, row.advertised[0] + 1 - beyond, row.advertised[1] - 1 + beyond) for row in (produce, fetch)]
        keys = [api_versions.ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in ranges]
        return list(cluster_check.of_apis(api_versions.Response(api_keys=keys)))

    assert found(beyond=0) == found(beyond=1) == []
    row = produce
    low, high = row.advertised
    for lowest, highest in ((low - 1, high), (low, high + 1)):
        key = api_versions.ApiVersion(api_key=row.key, min_version=lowest, max_version=highest)
        [each] = cluster_check.of_apis(api_versions.Response(api_keys=[key]))
        assert each.what == f"Produce versions {lowest} to {highest}"
    for each, row in zip(found(beyond=2), (produce, fetch), strict=True):
        low, high = row.advertised
        assert (each.level, each.what) == (MISSING, f"{row.name} versions {low - 1} to {high + 1}")
        assert each.why == f"this version serves {low} to {high}"


def test_the_settings_of_separate_controllers_are_unknown() -> None:
    """Those of voters and of observers that are not brokers."""
    nodes = [NodeFacts(node_id, "h", 9092, None, is_fenced=False) for node_id in (1, 2)]
    quorum = QuorumFacts(101, 1, {2: 0, 101: 0}, observers=[1, 103], addresses={})
    found = [(each.level, each.where, each.what) for each in cluster_check.of_controllers(nodes, quorum)]
    assert found == [(UNKNOWN, f"controller {node_id}", "its settings") for node_id in (101, 103)]
