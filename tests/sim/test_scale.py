"""Tests that the metadata cost of a failed broker depends on its partitions, not on the size of the cluster."""

from __future__ import annotations

import pytest

from kpybroker.sim.scale import run

MOVED = 1000


@pytest.mark.slow
def test_records_and_requests_of_a_failure_a_return_and_a_move() -> None:
    small, large = run(5, 1000), run(10, 4000)
    for rows, brokers, partitions in ((small, 5, 1000), (large, 10, 4000)):
        joined, made, beats, died, back, preferred, moved = rows
        hosted = partitions * 3 // brokers
        assert joined.records == 2 * brokers
        assert made.records == partitions + partitions // 1000
        assert (beats.requests, beats.records) == (brokers, 0), "an idle broker costs only heartbeats"
        assert (died.requests, died.records) == (1, hosted + 1), "one record for each partition it had, and its fencing"
        assert back.records == hosted + 2
        assert back.requests <= brokers + 1, "each leader asks once for all"
        assert preferred.records == partitions // brokers
        assert (moved.requests, moved.records) == (brokers + 1, 2 * MOVED)
