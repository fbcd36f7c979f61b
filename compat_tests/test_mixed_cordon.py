"""Tests that the active controller of one kind places no replica on a broker of the other kind whose directories are
cordoned (KIP-1066)."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.changing import until
from compat_tests.rolling import QUIET
from oracle.cluster import Cluster
from oracle.takeover import KAFKA, KPYBROKER

CONTROLLER = 101
CORDONED, OTHER = 1, 2


@pytest.mark.parametrize(
    ("controller", "broker"), [(KPYBROKER, KAFKA), pytest.param(KAFKA, KPYBROKER, marks=pytest.mark.full)]
)
def test_a_cordoned_broker_of_the_other_kind(controller: str, broker: str) -> None:
    cluster = Cluster(KAFKA, brokers=2, controllers=1, jvm=("-XX:TieredStopAtLevel=1",))
    for node in cluster.nodes.values():
        node.prepare()
    cluster.become(controller, CONTROLLER, OTHER)
    cluster.become(broker, CORDONED)
    with cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})

        def brokers_of(topic: str) -> set[int]:
            """The brokers of a new topic with six partitions."""
            admin.create_topics([NewTopic(topic, 6, 1)], operation_timeout=30)[topic].result(30)
            rows = cluster.partitions(topic).values()
            return {node for row in rows for node in row.replica_nodes}

        def alter(change: str) -> None:
            named = ("--entity-type", "brokers", "--entity-name", str(CORDONED))
            cluster.tool("kafka-configs", "--alter", *named, change).ok()

        assert brokers_of("before") == {CORDONED, OTHER}
        alter(f"--add-config=cordoned.log.dirs={cluster.nodes[CORDONED].data}")
        names = (f"cordoned{number}" for number in range(1000))
        until(lambda: brokers_of(next(names)) == {OTHER}, "the controller knows that the directory is cordoned")
        assert brokers_of("later") == {OTHER}
        alter("--delete-config=cordoned.log.dirs")
        names = (f"open{number}" for number in range(1000))
        until(lambda: brokers_of(next(names)) == {CORDONED, OTHER}, "the controller knows that it is not any more")
