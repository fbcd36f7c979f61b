"""Invariants of all schedules of delays, losses and crashes: acknowledged records are kept, and the logs agree."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from kpybroker.world.real import RealWorld
from tests.replication.model import Model

STEPS = 250


@pytest.fixture
def world() -> Iterator[RealWorld]:
    made = RealWorld(1)
    yield made
    made.close()


def agree(model: Model) -> None:
    """Assert that two logs are equal below both high watermarks."""
    for one, other in combinations(model.nodes.values(), 2):
        upper = min(one.partition.log.high_watermark, other.partition.log.high_watermark)
        assert model.values(one, upper) == model.values(other, upper)


def never_recedes(model: Model) -> None:
    """Assert that the latest offset never decreases, within a leader epoch or from one epoch to the next."""
    highest = 0
    for _, told in sorted(model.latest.items()):
        assert told == sorted(told)
        assert told[0] >= highest
        highest = told[-1]


@pytest.mark.parametrize("seed", range(60))
def test_acknowledged_records_stay(seed: int, world: RealWorld, tmp_path: Path) -> None:
    random = Random(seed)
    model = Model(world, tmp_path, random, min_isr=random.choice((1, 2)))
    for number in range(STEPS):
        model.step()
        if number % 10 == 0:
            agree(model)
    leader = model.finish()
    agree(model)
    never_recedes(model)
    found = model.values(leader)
    at = {offset: value for offset, _, value in found}
    assert [offset for offset, _, _ in found] == list(range(len(found)))
    for sent in model.sent:
        if sent.acknowledged:
            assert at.get(sent.end - 1) == sent.value, f"{sent.value!r} was acknowledged but is lost"
    for node in model.nodes.values():
        assert model.values(node) == found


def test_enough_happens_in_the_schedules(world: RealWorld, tmp_path: Path) -> None:
    """Enough records are acknowledged, and enough leader epochs begin, for the invariants to be meaningful."""
    acknowledged = reigns = 0
    for seed in range(5):
        model = Model(world, tmp_path / str(seed), Random(seed))
        for _ in range(STEPS):
            model.step()
        model.finish()
        acknowledged += sum(sent.acknowledged for sent in model.sent)
        reigns += model.controller.now.leader_epoch
    assert acknowledged > 40
    assert reigns > 10
