"""A few rounds of copying in transactions under kill -9; `python -m compat_tests.exactly_once` runs many."""

from collections.abc import Iterator, Sequence

import pytest

from compat_tests.conftest import Running, start_target
from compat_tests.exactly_once import BY_PARTITION, IN_A_GROUP, play
from oracle.cluster import Cluster

SEED = 5
QUICK_JVM = ("-XX:TieredStopAtLevel=1",)


@pytest.fixture
def alone(target_name: str) -> Iterator[Running]:
    broker = start_target(target_name)
    yield broker
    broker.kill9()
    broker.remove()


@pytest.mark.parametrize("kinds", [IN_A_GROUP, BY_PARTITION], ids=["a group", "by partition"])
def test_each_record_is_copied_once(kinds: Sequence[str], alone: Running) -> None:
    """Each client and the broker are killed, and in a group an additional member joins and is killed."""
    assert play(alone.bootstrap, kinds, lambda: [alone], len(kinds) + 2, SEED) > 1000


def test_each_record_is_copied_once_by_three_nodes(target_name: str) -> None:
    with Cluster(target_name, jvm=QUICK_JVM) as cluster:
        assert play(cluster.bootstrap, IN_A_GROUP, lambda: cluster.brokers, 5, SEED) > 1000
