"""Tests of planning: all offsets between the archive's end and the topic's end are copied once, and losses are
reported."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.archive.planning import Range, Topic, plan, rounds, without_deleted
from kpybroker.client.client import CommandFailed


def planned(offsets: dict[int, tuple[int, int]], ends: dict[int, int]) -> dict[int, Range]:
    found = plan([Topic("t", "id", offsets)], {("t", partition): end for partition, end in ends.items()})
    return {partition: at for (_, partition), at in found.items()}


def test_from_the_archives_end_to_the_topics() -> None:
    assert planned({0: (3, 9)}, {}) == {0: Range(3, 3, 9)}
    assert planned({0: (3, 9), 1: (0, 4)}, {0: 7, 1: 4}) == {0: Range(7, 7, 9)}
    assert planned({0: (7, 7)}, {0: 7}) == {}


def test_a_partition_is_recorded_from_the_first_run_on() -> None:
    """A partition is recorded even without records. Otherwise records that arrive and are deleted before the next run
    would not be reported."""
    assert planned({0: (0, 0), 1: (5, 5)}, {}) == {0: Range(0, 0, 0), 1: Range(5, 5, 5)}
    assert planned({0: (60, 100)}, {0: 0}) == {0: Range(0, 60, 100)}


def test_a_partition_that_was_added_begins_at_its_first_offset() -> None:
    assert planned({0: (0, 9), 1: (4, 6)}, {0: 9}) == {1: Range(0, 4, 6)}


def test_records_deleted_by_retention_are_reported() -> None:
    assert planned({0: (7, 9)}, {0: 5}) == {0: Range(5, 7, 9)}
    assert planned({0: (9, 9)}, {0: 5}) == {0: Range(5, 9, 9)}


def test_a_topic_that_ends_before_its_archive_is_refused() -> None:
    with pytest.raises(CommandFailed, match="t-0 ends at 9, but the archive has it up to 10"):
        planned({0: (0, 9)}, {0: 10})


def test_records_deleted_during_a_run_are_reported() -> None:
    turn = {("t", 0): Range(0, 0, 10), ("t", 1): Range(3, 5, 10), ("t", 2): Range(0, 0, 10)}
    now = [Topic("t", "id", {0: (4, 20), 1: (2, 20), 2: (15, 20)})]
    assert without_deleted(turn, now) == {
        ("t", 0): Range(0, 4, 10),
        ("t", 1): Range(3, 5, 10),
        ("t", 2): Range(0, 10, 10),
    }


parts = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 300))


@pytest.mark.slow
@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 20), parts, max_size=8), st.integers(1, 300))
def test_the_rounds_add_up_to_the_ranges(sizes: dict[int, tuple[int, int, int]], offsets_max: int) -> None:
    """The rounds are in order, without overlap or gap, no round is larger than requested, and each loss is reported
    once."""
    ranges = {
        ("t", partition): Range(lost_from, lost_from + lost, lost_from + lost + size)
        for partition, (lost_from, lost, size) in sizes.items()
    }
    at = {place: range_.lost_from for place, range_ in ranges.items()}
    for number, turn in enumerate(rounds(ranges, offsets_max)):
        assert turn
        assert number or turn.keys() == ranges.keys()
        assert sum(part.end - part.start for part in turn.values()) <= offsets_max
        for place, part in turn.items():
            assert part.lost_from == at[place]
            assert part.start == max(ranges[place].start, at[place])
            at[place] = part.end
    assert at == {place: range_.end for place, range_ in ranges.items()}
