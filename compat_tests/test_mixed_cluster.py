"""Tests a cluster of Apache Kafka and kpybroker nodes: three combined nodes of Apache Kafka are replaced one by one by
kpybroker nodes on the same directories, ports and ids, and then back, while clients produce, consume and commit."""

from __future__ import annotations

import pytest

from compat_tests.rolling_rounds import Rolling, kafka_cluster, logged_errors


@pytest.mark.parametrize(
    ("dynamic", "how", "java"),
    [
        pytest.param(False, "stop", None, id="static voters"),
        pytest.param(True, "stop", None, id="dynamic voters", marks=pytest.mark.full),
        pytest.param(False, "kill9", None, id="static voters, killed", marks=pytest.mark.full),
        pytest.param(True, "kill9", None, id="dynamic voters, killed", marks=pytest.mark.full),
        pytest.param(False, "stop", "classic", id="static voters, Java", marks=pytest.mark.full),
        pytest.param(True, "kill9", "streams", id="dynamic voters, killed, Java", marks=pytest.mark.full),
    ],
)
def test_each_node_is_replaced_there_and_back(dynamic: bool, how: str, java: str | None) -> None:
    with kafka_cluster(dynamic=dynamic) as cluster:
        rolling = Rolling(cluster, how=how, java=java)
        assert len(list(rolling.play())) == 2 * len(cluster.nodes)
        errors = logged_errors(cluster)
        assert not errors, "\n".join(errors)
        rolling.check_replicas()
