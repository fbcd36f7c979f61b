"""Runs every script in `scripts/` and `consumer_scripts/`, and compares the results with the recorded ones.

`python -m tests.groups.test_scripts` records the results again after a change of a script; then review the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.groups.play import play

HERE = Path(__file__).parent
SCRIPTS = [*sorted((HERE / "scripts").glob("*.txt")), *sorted((HERE / "consumer_scripts").glob("*.txt"))]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script(script: Path) -> None:
    assert play(script.read_text()) == script.read_text()


if __name__ == "__main__":
    for path in SCRIPTS:
        path.write_text(play(path.read_text()))
