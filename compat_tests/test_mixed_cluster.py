"""Tests a cluster of Apache Kafka and kpybroker nodes: three combined nodes of Apache Kafka are replaced one by one by
kpybroker nodes on the same directories, ports and ids, and then back, while clients produce, consume and commit."""

from __future__ import annotations

import pytest

from compat_tests.rolling_rounds import Rolling, kafka_cluster, logged_errors, repeated
from kpybroker.wire.records.batch import encode_batch


def log(*batches: tuple[int, list[int]]) -> bytes:
    """A log with batches of one producer. Each has an epoch, and the numbers in its records."""
    made = [encode_batch([(None, b"%d" % number) for number in rows], producer_epoch=epoch) for epoch, rows in batches]
    return b"".join(made)


def test_records_are_repeated_only_in_a_new_epoch_of_their_producer() -> None:
    assert repeated("p", log((0, [1, 2, 3]), (1, [4]), (3, [3, 4, 5]))) == 2


@pytest.mark.parametrize(
    "batches",
    [[(0, [1, 2]), (0, [2, 3])], [(0, [1, 3])], [(0, [1, 2]), (1, [4])], [(0, [2, 1])], [(0, [1, 2]), (1, [2, 2])]],
    ids=["repeated", "gap", "gap before a new epoch", "reordered", "repeated in the new epoch"],
)
def test_all_other_logs_are_refused(batches: list[tuple[int, list[int]]]) -> None:
    with pytest.raises(AssertionError):
        repeated("p", log(*batches))


@pytest.mark.parametrize(
    ("dynamic", "how", "java", "share"),
    [
        pytest.param(False, "stop", None, False, id="static voters"),
        pytest.param(True, "stop", None, False, id="dynamic voters", marks=pytest.mark.full),
        pytest.param(False, "kill9", None, False, id="static voters, killed", marks=pytest.mark.full),
        pytest.param(True, "kill9", None, False, id="dynamic voters, killed", marks=pytest.mark.full),
        pytest.param(False, "stop", "classic", False, id="static voters, Java", marks=pytest.mark.full),
        pytest.param(True, "kill9", "streams", False, id="dynamic voters, killed, Java", marks=pytest.mark.full),
        pytest.param(False, "stop", None, True, id="share group", marks=pytest.mark.full),
    ],
)
def test_each_node_is_replaced_there_and_back(dynamic: bool, how: str, java: str | None, share: bool) -> None:
    with kafka_cluster(dynamic=dynamic) as cluster:
        rolling = Rolling(cluster, how=how, java=java, share=share)
        assert len(list(rolling.play())) == 2 * len(cluster.nodes)
        errors = logged_errors(cluster)
        assert not errors, "\n".join(errors)
        rolling.check_replicas()
