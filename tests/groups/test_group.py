"""Tests the invariants of consumer groups (KIP-848): no partition has two owners, each has one owner in a stable group,
and a replay produces the live state."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.groups.ground.settings import GroupSettings
from tests.groups.consumers import Colony

QUICK = {"consumer_session_timeout_ms": 10_000, "consumer_min_session_timeout_ms": 1_000}


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 1_000]))
def test_well_behaved_consumers_come_to_rest(seed: int, interval_ms: int) -> None:
    """Members join, leave, crash and lose responses; topics grow; coordinators change."""
    colony = Colony(Random(seed), GroupSettings(consumer_assignment_interval_ms=interval_ms, **QUICK))
    for _ in range(150):
        colony.disturb()
    colony.settle()
    colony.assert_at_rest()
