"""Tests `kpybroker status` on a cluster of Apache Kafka, on one of kpybroker, and on one of both, with a controller of
its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.changing import until
from compat_tests.rolling import QUIET
from oracle.cluster import FIRST_CONTROLLER, Cluster
from oracle.takeover import KAFKA, KPYBROKER

TOPIC = "t"
PROPERTIES = {"default.replication.factor": "2", "min.insync.replicas": "1"}
SHOWN = {KAFKA: "Apache Kafka 4.3", KPYBROKER: "kpybroker (as 4.3)"}


def status(cluster: Cluster, *options: str) -> str:
    command = [sys.executable, "-m", "kpybroker", "status", *options]
    environment = {**os.environ, "KPYBROKER_BOOTSTRAP": cluster.bootstrap}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def facts(cluster: Cluster) -> Any:
    return json.loads(status(cluster, "--json"))


@pytest.mark.full
@pytest.mark.parametrize("kinds", [(KAFKA, KAFKA), (KPYBROKER, KPYBROKER), (KPYBROKER, KAFKA)], ids=" and ".join)
def test_the_nodes_of_each_kind(kinds: tuple[str, str]) -> None:
    """The controller and broker 1 are of the first kind, and broker 2 of the second. Then broker 2 is stopped."""
    cluster = Cluster(kinds[0], brokers=2, controllers=1, properties=PROPERTIES, jvm=("-XX:TieredStopAtLevel=1",))
    cluster.become(kinds[1], 2)
    with cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        admin.create_topics([NewTopic(TOPIC, 2, 2)], operation_timeout=30)[TOPIC].result(30)
        cluster.await_in_sync(TOPIC)
        told = facts(cluster)
        assert told["unknown"] == {}
        names = [SHOWN[kind].split(" (")[0].removesuffix(" 4.3") for kind in kinds]
        assert [node["kind"] for node in told["nodes"]] == names
        assert [(node["release"], node["roles"], node["is_fenced"]) for node in told["nodes"]] == [
            ("4.3", ["broker"], False)
        ] * 2
        assert [(node["leads"], node["replicas"], node["in_sync"]) for node in told["nodes"]] == [(1, 2, 2)] * 2
        assert told["controller"]["node"] == FIRST_CONTROLLER
        [other] = told["other_controllers"]
        port = cluster.nodes[FIRST_CONTROLLER].seat.controller_port
        assert other == {"node": FIRST_CONTROLLER, "address": f"127.0.0.1:{port}"}
        assert told["features"]["metadata.version"] == 30
        screen = status(cluster)
        assert all(SHOWN[kind] in screen for kind in kinds)
        assert "all replicas in sync" in screen
        cluster.nodes[2].stop()
        until(lambda: len(facts(cluster)["partitions"]["under_replicated"]) == 2, "it is out of sync")
        told = facts(cluster)
        assert [(node["leads"], node["replicas"], node["in_sync"]) for node in told["nodes"]] == [(2, 2, 2), (0, 2, 0)]
        assert [node["kind"] for node in told["nodes"]] == [names[0], None]
