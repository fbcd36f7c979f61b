"""Tests that Kafka's tools print exactly the same output for kpybroker as for Apache Kafka; see `transcripts`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.conftest import Running, start_target
from compat_tests.transcripts import HERE, SETTINGS, Exchange, Player, parse

SCRIPTS = sorted(path.stem for path in HERE.glob("*.txt"))
KAFKAS_PATIENCE_S = 15.0


@pytest.fixture
def fresh(target_name: str) -> Iterator[Running]:
    """A separate broker, because tools list everything that exists."""
    broker = start_target(target_name, SETTINGS)
    yield broker
    broker.kill9()
    broker.remove()


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_output_of_the_tools(script: str, fresh: Running, target_name: str, tmp_path: Path) -> None:
    player = Player(fresh, tmp_path)
    for one in parse((HERE / f"{script}.txt").read_text()):
        if isinstance(one, Exchange):
            heard = player.play(one, KAFKAS_PATIENCE_S if target_name == "kafka" else 0.0)
            assert one.accepts(heard, target_name), "\n".join(
                [one.command, "-- expected:", *one.due_from(target_name), "-- actual:", *heard]
            )
