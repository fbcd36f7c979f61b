"""Tests that merging batches of delivery states results in the same state for each offset, in any order of the
deltas."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kpybroker.shares.batches import STORED_STATES, StateBatch, merged

BATCHES = st.lists(
    st.builds(
        lambda first, size, state, deliveries: StateBatch(first, first + size, state, deliveries),
        st.integers(0, 40),
        st.integers(0, 12),
        st.sampled_from(sorted(STORED_STATES)),
        st.integers(0, 4),
    ),
    max_size=8,
)
STARTS = st.integers(-1, 45)


def by_offset(*told: StateBatch, start: int = -1) -> dict[int, tuple[int, int]]:
    """(deliveries, state) of each offset: the highest in any batch."""
    found: dict[int, tuple[int, int]] = {}
    for each in told:
        for offset in range(max(each.first, start), each.last + 1):
            found[offset] = max(found.get(offset, (-1, -1)), (each.deliveries, each.state))
    return found


@given(BATCHES, BATCHES, STARTS)
def test_each_offset_has_the_latest_that_is_told_of_it(
    known: list[StateBatch], told: list[StateBatch], start: int
) -> None:
    assert by_offset(*merged(known, told, start)) == by_offset(*known, *told, start=start)


@given(BATCHES, STARTS)
def test_the_result_is_disjoint_in_order_and_as_short_as_can_be(told: list[StateBatch], start: int) -> None:
    for one, other in pairwise(merged((), told, start)):
        assert one.last < other.first
        assert one.last + 1 < other.first or one[2:] != other[2:]


@given(BATCHES, BATCHES, STARTS)
def test_deltas_may_come_late_and_twice(one: list[StateBatch], other: list[StateBatch], start: int) -> None:
    once = merged(merged((), one, start), other, start)
    assert once == merged(merged((), other, start), one, start)
    assert once == merged(once, one, start) == merged(once, (), start)


def test_kafkas_example() -> None:
    """The expected values are from Apache Kafka 4.3.1."""
    known = merged((), [StateBatch(5, 9, 2, 1), StateBatch(10, 12, 0, 2)], 5)
    assert merged(known, [StateBatch(12, 14, 2, 1)], 5) == (
        StateBatch(5, 9, 2, 1),
        StateBatch(10, 12, 0, 2),
        StateBatch(13, 14, 2, 1),
    )
