"""Tests that each actor takes part in some seeds, with its own probability, and then runs its workload."""

from __future__ import annotations

from collections import Counter

import pytest

from kpybroker.sim.actors.catalog import ACTORS, actor_names, with_actors
from kpybroker.sim.actors.reassignment import Whereabouts
from kpybroker.sim.cluster.setup import setup_of
from kpybroker.sim.simulation import Simulation

pytestmark = pytest.mark.slow

SEEDS = range(300)
AT_ONCE = 2.6
"""The limit on the average number of actors per seed, so that they do not make seeds much slower."""

SEED = 108
"""A seed in which every actor finds something to do."""


def test_each_actor_takes_part_in_some_seeds_and_few_at_once() -> None:
    played = Counter(name for seed in SEEDS for name in with_actors(setup_of(seed, brokers=3)).actors)
    assert set(played) == set(actor_names())
    assert all(len(SEEDS) * 0.05 < count < len(SEEDS) * 0.3 for count in played.values()), played
    assert played.total() < AT_ONCE * len(SEEDS)


def test_an_actors_participation_does_not_change_the_draws_of_others() -> None:
    for seed in range(50):
        alone = setup_of(seed, brokers=3)
        assert with_actors(alone, only=True) == alone
        drawn = with_actors(alone).actors
        for name in drawn:
            assert with_actors(alone, (name,), only=True).actors == (name,)
        assert with_actors(alone, actor_names()).actors == tuple(
            actor.name for actor in ACTORS if actor.name and actor.suits(alone)
        )


@pytest.mark.parametrize(
    "shows",
    [
        {
            "reassignment": "reassignments",
            "racks": "fetched from a follower",
            "times": "acked acks=-1",
            "acks_none": "records written with acks=0",
            "partitions": "partitions created",
            "unregistration": "brokers unregistered",
        },
        {
            "deletion": "records deleted",
            "compression": "acked acks=-1",
            "elections": "elections requested",
            "settings": "settings changed",
            "quotas": "clients throttled",
        },
    ],
    ids=["replicas", "admin requests"],
)
def test_actors_do_their_work_and_keep_the_contract(shows: dict[str, str]) -> None:
    setup = with_actors(setup_of(SEED, brokers=3), tuple(shows), only=True)
    assert set(setup.actors) == set(shows)
    outcome = Simulation(setup).run()
    assert outcome.breaches == []
    assert [what for what in shows.values() if not outcome.counts.get(what)] == []


def test_where_a_reassignment_may_end() -> None:
    """It may end at the last accepted target, after a cancellation at the original replicas, and also at the target of
    a request without a response."""
    first, second, third = frozenset({1}), frozenset({2}), frozenset({3})
    where = Whereabouts({first})
    where.moves(second)
    assert where.allowed == {second}
    where.moves(third)
    where.cancelled()
    assert where.allowed == {first, second}
    doubtful = Whereabouts({first}, doubtful={second})
    doubtful.cancelled()
    assert doubtful.allowed == {first, second}, "the cancellation may have applied to the request without a response"
