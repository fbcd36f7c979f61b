"""A short run of faults on three real nodes; `make chaos` makes a long run."""

from pathlib import Path

import pytest

from chaos.run import Run

SECONDS = 20.0
SEED = 4


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secured"])
def test_a_cluster_in_trouble_keeps_its_word(tmp_path: Path, target_name: str, secure: bool) -> None:
    said: list[str] = []
    # `make chaos` on an idle machine measures how long acks=all waits; in this test, other tests may delay all three
    # nodes
    report = Run(target_name, SEED, tmp_path, said.append, silence_max_s=None, secure=secure).play(SECONDS)
    assert report.violations == [], said[-100:]
    assert report.acknowledged > 0
    assert report.counted["kills"] > 0
    if secure:
        assert report.changes > 0
        assert report.decisions > 0
        assert report.guesses > 0
