"""Tests that a coordinator of one kind ends the transactions that one of the other kind has prepared."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.rolling import QUIET
from compat_tests.rolling_rounds import logged_errors
from compat_tests.test_interrupted_commits import SETTINGS, end_elsewhere
from kpybroker.topics import TRANSACTION_TOPIC
from oracle.cluster import FIRST_CONTROLLER, Cluster
from oracle.kafka import QUICK_JVM
from oracle.takeover import KAFKA, KPYBROKER

COORDINATOR, SUCCESSOR, AWAY = 1, 2, 3
STATE = {"cleanup.policy": "compact", "min.insync.replicas": "1"}
OTHER = {KAFKA: KPYBROKER, KPYBROKER: KAFKA}


@pytest.mark.full
@pytest.mark.parametrize("coordinator", [KAFKA, KPYBROKER])
def test_a_coordinator_of_the_other_kind_ends_prepared_transactions(coordinator: str) -> None:
    """Only these two nodes can be coordinators. The partitions without a marker are on a third one."""
    cluster = Cluster(KAFKA, controllers=1, properties=SETTINGS, jvm=QUICK_JVM)
    for node in cluster.nodes.values():
        node.prepare()
    cluster.become(coordinator, COORDINATOR, AWAY)
    cluster.become(OTHER[coordinator], SUCCESSOR, FIRST_CONTROLLER)
    with cluster:
        placed = [[COORDINATOR, SUCCESSOR]] * int(SETTINGS["transaction.state.log.num.partitions"])
        state = NewTopic(TRANSACTION_TOPIC, len(placed), replica_assignment=placed, config=STATE)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        admin.create_topics([state], operation_timeout=30)[TRANSACTION_TOPIC].result(30)
        end_elsewhere(cluster, AWAY, [COORDINATOR], "paused")
        errors = logged_errors(cluster)
        assert not errors, "\n".join(errors)
