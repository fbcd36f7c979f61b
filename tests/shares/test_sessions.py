"""Tests share sessions: the partitions that a fetch reads."""

from __future__ import annotations

import pytest

from kpybroker.shares.sessions import LOOKED_AT_ONCE, SessionKey, ShareSession


@pytest.mark.parametrize("count", [1, LOOKED_AT_ONCE, LOOKED_AT_ONCE + 1, 3 * LOOKED_AT_ONCE + 7])
def test_fetches_look_at_a_limited_number_of_partitions_and_at_each_in_its_turn(count: int) -> None:
    session = ShareSession(SessionKey("g", "m"), 1)
    places = [(b"t" * 16, index) for index in range(count)]
    session.add(places)
    seen: set[tuple[bytes, int]] = set()
    for _ in range(-(-count // LOOKED_AT_ONCE)):
        looked = session.in_turn()
        assert len(looked) == len(set(looked)) == min(count, LOOKED_AT_ONCE)
        seen.update(looked)
        session.advance()
    assert seen == set(places)
