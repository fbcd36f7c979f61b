"""Tests which nodes of a mixed cluster become kpybroker."""

from pathlib import Path

import pytest

from chaos.run import replaced
from oracle.cluster import FIRST_CONTROLLER, Cluster
from oracle.takeover import KAFKA

BROKERS = {1, 2, 3}
SEEDS = range(20)


@pytest.mark.parametrize("kafka_nodes", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("controllers", [0, 3])
def test_so_many_brokers_and_separate_controllers_stay_apache_kafka(
    tmp_path: Path, kafka_nodes: int, controllers: int
) -> None:
    cluster = Cluster(KAFKA, controllers=controllers, directory=tmp_path)
    drawn = replaced(cluster, kafka_nodes, 1)
    assert len(set(drawn)) == len(drawn)
    assert set(drawn) <= set(cluster.nodes)
    for group in (BROKERS, set(range(FIRST_CONTROLLER, FIRST_CONTROLLER + controllers))):
        assert len(group - set(drawn)) == min(kafka_nodes, len(group))


def test_the_seed_decides_which_nodes_stay_apache_kafka(tmp_path: Path) -> None:
    cluster = Cluster(KAFKA, directory=tmp_path)
    drawn = [replaced(cluster, 2, seed) for seed in SEEDS]
    assert drawn == [replaced(cluster, 2, seed) for seed in SEEDS]
    assert {node_id for one in drawn for node_id in one} == BROKERS
