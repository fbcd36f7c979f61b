"""Replicas are spread over brokers and racks, and leaders are spread evenly."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kpybroker.controller.placement import Candidate, place_replicas

CLUSTERS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.booleans()), min_size=1, max_size=9).map(
    lambda brokers: [Candidate(id_, rack, fenced) for id_, (rack, fenced) in enumerate(brokers)]
)


@given(CLUSTERS.filter(lambda c: not all(b.fenced for b in c)), st.integers(1, 40), st.integers(1, 9), st.integers())
def test_every_placement_is_legal_and_even(candidates: list[Candidate], count: int, factor: int, seed: int) -> None:
    factor = min(factor, len(candidates))
    placed = place_replicas(candidates, count, factor, Random(seed))
    live = {candidate.node_id for candidate in candidates if not candidate.fenced}
    racks = {candidate.node_id: candidate.rack for candidate in candidates}
    live_racks = {racks[node_id] for node_id in live}
    assert len(placed) == count
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert replicas[0] in live
        assert len(live & set(replicas)) == min(factor, len(live))
        assert len({racks[node_id] for node_id in replicas}) >= min(factor, len(live), len(live_racks))
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders[node_id] for node_id in live) <= 1


def test_many_topics_of_one_partition_spread_too() -> None:
    candidates = [Candidate(id_, None) for id_ in range(5)]
    random = Random(1)
    leaders = Counter(place_replicas(candidates, 1, 3, random)[0][0] for _ in range(500))
    assert min(leaders.values()) > 50
