"""A short stretch of trouble over three real nodes; `make chaos` has the long one."""

from pathlib import Path

from chaos.run import Run

SECONDS = 20.0
SEED = 4


def test_a_cluster_in_trouble_keeps_its_word(tmp_path: Path, target_name: str) -> None:
    said: list[str] = []
    # how long acks=all waits is for `make chaos` on a quiet machine: here other tests may hold up all three nodes
    report = Run(target_name, SEED, tmp_path, said.append, silence_max_s=None).play(SECONDS)
    assert report.violations == [], said[-100:]
    assert report.acknowledged > 0
    assert report.counted["kills"] > 0
