"""A search in an index returns the same positions as a scan of its entries."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.storage.files.index import OffsetIndex, TimeIndex

steps = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 500), st.integers(0, 9)), max_size=60)
BASE = 1000


def filled(
    of: list[tuple[int, int, int]],
) -> tuple[OffsetIndex, TimeIndex, list[tuple[int, int]], list[tuple[int, int]]]:
    offsets, times = OffsetIndex(BASE), TimeIndex(BASE)
    batches: list[tuple[int, int]] = []
    stamps: list[tuple[int, int]] = []
    offset, position, timestamp = BASE, 0, 50
    for records, size, later in of:
        offset, position, timestamp = offset + records, position + size, timestamp + later
        offsets.add(offset, position)
        batches.append((offset, position))
        times.add(timestamp, offset)
        if later or not stamps:
            stamps.append((timestamp, offset))
    return offsets, times, batches, stamps


@given(steps, st.integers(BASE - 2, BASE + 320))
@settings(deadline=None, max_examples=30)
def test_positions_equal_those_of_a_scan(of: list[tuple[int, int, int]], offset: int) -> None:
    index, _, batches, _ = filled(of)
    assert [index.entry(at) for at in range(len(index))] == batches
    assert index.position_for(offset) == max([position for last, position in batches if last <= offset], default=0)


@given(steps, st.integers(BASE - 2, BASE + 320))
@settings(deadline=None, max_examples=30)
def test_an_end_is_the_position_after_the_batch(of: list[tuple[int, int, int]], offset: int) -> None:
    index, _, batches, _ = filled(of)
    ends = [position for _, position in batches][1:]
    after = [end for (last, _), end in zip(batches, ends, strict=False) if last >= offset]
    assert index.end_for(offset) == min(after, default=None)


@given(steps, st.integers(BASE - 2, BASE + 320), st.integers(0, 30_000))
@settings(deadline=None, max_examples=30)
def test_the_floor_is_below_both_limits(of: list[tuple[int, int, int]], offset: int, position: int) -> None:
    index, _, batches, _ = filled(of)
    below = [at for last, at in batches if last <= offset and at <= position]
    assert index.floor(offset, position) == max(below, default=0)


@given(steps, st.integers(0, 700))
@settings(deadline=None, max_examples=30)
def test_no_earlier_record_has_the_time(of: list[tuple[int, int, int]], timestamp: int) -> None:
    _, times, _, stamps = filled(of)
    assert [times.entry(at) for at in range(len(times))] == stamps
    assert times.offset_before(timestamp) == max([last for at, last in stamps if at < timestamp], default=BASE)


@given(steps, st.integers(0, 60))
@settings(deadline=None, max_examples=30)
def test_a_truncated_index_equals_one_that_never_had_more(of: list[tuple[int, int, int]], kept: int) -> None:
    index, times, batches, _ = filled(of)
    if kept < len(batches):
        index.cut(batches[kept][1])
        times.cut(batches[kept][0])
        shorter, shorter_times, _, _ = filled(of[:kept])
        assert index.entries == shorter.entries
        assert times.entries == shorter_times.entries


def test_entries_have_kafkas_bytes() -> None:
    offsets, times = OffsetIndex(BASE), TimeIndex(BASE)
    offsets.add(BASE + 3, 4097)
    times.add(1_700_000_000_000, BASE + 3)
    assert offsets.entries.hex() == "0000000300001001"
    assert times.entries.hex() == "0000018bcfe5680000000003"
