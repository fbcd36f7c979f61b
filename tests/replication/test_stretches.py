"""Tests of the stretches without a match that a broker keeps for views: they are found again, joined, and bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.replication.partition import stretches as tested
from kpybroker.replication.partition.stretches import STRETCH_MIN_BYTES, Scanned, Stretch, Stretches

VIEW, OTHER = Scanned(b"id", 0, "tombstone"), Scanned(b"id", 0, "exists key")
LARGE = STRETCH_MIN_BYTES


def stretch(begin: int, end: int) -> Stretch:
    return Stretch(begin, end, b"%d" % end)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12), st.booleans()), max_size=12))
def test_only_offsets_of_added_stretches_are_passed_over(added: list[tuple[int, int, bool]]) -> None:
    """A consumer that follows `find` from any offset ends at the end of an added stretch, and never passes an offset
    that no stretch contains."""
    kept = Stretches()
    without_a_match: set[int] = set()
    for begin, length, is_large in added:
        kept.add(VIEW, 0, stretch(begin, begin + length), LARGE if is_large else 1)
        without_a_match |= set(range(begin, begin + length))
    for offset in range(75):
        found = kept.find(VIEW, 0, offset, 100)
        if found is not None:
            assert set(range(offset, found.end)) <= without_a_match
            assert found.last == b"%d" % found.end
            assert kept.find(VIEW, 0, offset, found.end - 1) is None
        assert kept.find(OTHER, 0, offset, 100) is None


def test_a_small_stretch_is_kept_only_as_part_of_another() -> None:
    kept = Stretches()
    kept.add(VIEW, 0, stretch(0, 5), LARGE - 1)
    assert kept.find(VIEW, 0, 0, 100) is None
    kept.add(VIEW, 0, stretch(5, 10), LARGE)
    kept.add(VIEW, 0, stretch(10, 12), 1)
    assert kept.find(VIEW, 0, 5, 100) == Stretch(5, 12, b"12")
    assert kept.count == 1


def test_stretches_are_forgotten_when_the_log_changes() -> None:
    kept = Stretches()
    kept.add(VIEW, 0, stretch(0, 5), LARGE)
    assert kept.find(VIEW, 1, 0, 100) is None
    assert (kept.find(VIEW, 0, 0, 100), kept.count) == (None, 0)


def test_the_most_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "STRETCHES_MAX", 3)
    kept = Stretches()
    for view in (VIEW, OTHER):
        for begin in (0, 10):
            kept.add(view, 0, stretch(begin, begin + 5), LARGE)
    assert (kept.find(VIEW, 0, 0, 100), kept.count) == (None, 2), "the one that was read longest ago is forgotten"
    for begin in (20, 30):
        kept.add(OTHER, 0, stretch(begin, begin + 5), LARGE)
    assert kept.count == 0
