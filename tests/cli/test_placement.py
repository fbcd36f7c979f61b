"""Tests that reassignment plans are even and complete, and contain no unnecessary moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.cli.placement import place


@st.composite
def wishes(draw: st.DrawFn) -> tuple[dict[int, list[int]], list[int], int | None]:
    """Partitions on some of eight brokers, the brokers that may have them afterwards, and optionally a new number of
    replicas."""
    allowed = sorted(draw(st.sets(st.integers(1, 8), min_size=1)))
    count = draw(st.none() | st.integers(1, len(allowed)))
    held_max = 3 if count is not None else min(3, len(allowed))
    held = st.lists(st.integers(1, 8), min_size=1, max_size=held_max, unique=True)
    return dict(enumerate(draw(st.lists(held, min_size=1, max_size=12)))), allowed, count


@given(wishes())
@settings(max_examples=150, deadline=None)
def test_a_plan_is_complete_even_and_final(wish: tuple[dict[int, list[int]], list[int], int | None]) -> None:
    current, allowed, count = wish
    new = place(current, allowed, count)
    assert new.keys() == current.keys()
    for index, held in new.items():
        assert len(held) == len(set(held)) == (count or len(current[index]))
        assert set(held) <= set(allowed)
    load = Counter(dict.fromkeys(allowed, 0))
    load.update(broker for held in new.values() for broker in held)
    assert max(load.values()) - min(load.values()) <= 1
    assert place(new, allowed, count) == new, "a cluster that is as planned is left alone"


def test_an_even_placement_is_not_changed() -> None:
    even = {0: [1, 2], 1: [2, 3], 2: [3, 1]}
    assert place(even, [1, 2, 3]) == even
    moved = place(even, [1, 2, 3, 4])
    assert Counter(broker for held in moved.values() for broker in held)[4] == 1, "a new broker gets its share"
    assert sum(set(moved[index]) != set(even[index]) for index in even) == 1


def test_leaders_are_spread() -> None:
    new = place({index: [1, 2, 3] for index in range(6)}, [1, 2, 3])
    assert Counter(held[0] for held in new.values()) == {1: 2, 2: 2, 3: 2}


def test_replicas_go_to_different_racks() -> None:
    new = place({index: [1] for index in range(4)}, [1, 2, 3, 4], 2, {1: "a", 2: "a", 3: "b", 4: "b"})
    for held in new.values():
        assert len({broker <= 2 for broker in held}) == 2, new


def test_more_replicas_than_brokers() -> None:
    with pytest.raises(ValueError, match="3 replicas"):
        place({0: [1]}, [1, 2], 3)
