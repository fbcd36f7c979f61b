"""A short run of faults on three real nodes; `make chaos` has the long one."""

from pathlib import Path

from chaos.run import Run

SECONDS = 20.0
SEED = 4


def test_a_cluster_under_faults_loses_no_acknowledged_record(tmp_path: Path, target_name: str) -> None:
    said: list[str] = []
    # the waiting time of acks=all is for `make chaos` on a quiet machine: here other tests may delay all three nodes
    report = Run(target_name, SEED, tmp_path, said.append, silence_max_s=None).play(SECONDS)
    assert report.violations == [], said[-100:]
    assert report.acknowledged > 0
    assert report.counted["kills"] > 0
