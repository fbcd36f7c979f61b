"""Tests that the index of due times gives the same records as a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kpybroker.scheduled.due_index import CHUNK, WIDTHS_MS, DueIndex

HOUR_MS, MINUTE_MS, SECOND_MS = WIDTHS_MS
BASE_MS = 1_700_000_000_000
DUE = st.one_of(
    st.integers(BASE_MS - 5000, BASE_MS + 5000),
    st.integers(BASE_MS, BASE_MS + 3 * HOUR_MS),
    st.sampled_from([BASE_MS // width * width + near for width in WIDTHS_MS for near in (-1, 0, 1)]),
    st.sampled_from([0, 1, (1 << 63) - 1]),
)
STEPS = st.lists(
    st.one_of(
        st.lists(DUE, min_size=1, max_size=6),
        st.tuples(st.just("first"), st.integers(0, 2 * HOUR_MS)),
        st.tuples(st.just("take"), st.integers(0, 2 * HOUR_MS)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 5), st.sampled_from([1, 2, 4, CHUNK]))
def test_it_gives_the_records_of_a_sorted_list(steps: list[list[int] | tuple[str, int]], most: int, chunk: int) -> None:
    index, model, position = DueIndex(chunk), list[tuple[int, int]](), 0
    for step in steps:
        if isinstance(step, list):
            index.add(step, position + 1)
            model = sorted([*model, *((due_ms, position + at) for at, due_ms in enumerate(step, 1))])
            position += len(step)
        elif step[0] == "first":
            due = [each for each in model if each[0] <= BASE_MS + step[1]]
            assert index.first(BASE_MS + step[1], most) == due[:most]
        else:
            value = step[1]
            last, end = (BASE_MS + value, position // 2), position - value % 3
            taken = [each for each in model if each <= last and each[1] < end and (value % 2 or each[1] % 3)]
            is_taken = None if value % 2 else lambda _, at: at % 3 != 0
            assert sorted(index.take(*last, end, is_taken)) == sorted(at for _, at in taken)
            model = [each for each in model if each not in taken]
        assert len(index) == len(model)
        soonest = index.next_due_ms()
        assert (soonest is None) == (not model)
        assert soonest is None or soonest <= model[0][0]


@given(st.lists(DUE, min_size=1, max_size=20))
def test_the_next_due_time_is_exact_once_it_has_come(dues: list[int]) -> None:
    """Otherwise a leader would sleep and wake for ever without delivering."""
    index = DueIndex()
    index.add(dues, 0)
    for _ in dues:
        first = index.next_due_ms()
        assert first is not None
        index.first(first, 1)
        if index.next_due_ms() == first:
            break
        assert (index.next_due_ms() or 0) > first
    else:
        index.first(min(dues), 1)
    assert index.first(min(dues), 1) == [(min(dues), dues.index(min(dues)))]
    assert index.next_due_ms() == min(dues)
