"""A short run of faults on three real nodes; `make chaos` makes a long run."""

from pathlib import Path

import pytest

from chaos.run import MIXED, Report, Run
from oracle.takeover import KAFKA, KPYBROKER

SECONDS = 20.0
SEED = 4


def play(run: Run, said: list[str]) -> Report:
    report = run.play(SECONDS)
    assert report.violations == [], said[-100:]
    assert report.acknowledged > 0
    assert report.counted["kills"] > 0
    return report


# `make chaos` on an idle machine measures how long acks=all waits; in these tests, other tests may delay all three
# nodes


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secured"])
def test_a_cluster_in_trouble_keeps_its_word(tmp_path: Path, target_name: str, secure: bool) -> None:
    said: list[str] = []
    report = play(Run(target_name, SEED, tmp_path, said.append, silence_max_s=None, secure=secure), said)
    if secure:
        assert report.changes > 0
        assert report.decisions > 0
        assert report.guesses > 0


@pytest.mark.full
@pytest.mark.parametrize("kafka_nodes", [1, 2])
def test_a_mixed_cluster_in_trouble_keeps_its_word(tmp_path: Path, kafka_nodes: int) -> None:
    said: list[str] = []
    run = Run(MIXED, SEED, tmp_path, said.append, silence_max_s=None, kafka_nodes=kafka_nodes)
    play(run, said)
    assert sorted(node.name for node in run.cluster.nodes.values()) == sorted(
        [KAFKA] * kafka_nodes + [KPYBROKER] * (3 - kafka_nodes)
    )
