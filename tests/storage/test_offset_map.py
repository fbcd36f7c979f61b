"""The map of a cleaning knows of every record whether a newer one has its key, within its limit of memory."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from kpybroker.storage.compaction.offset_map import ENTRY_BYTES, MARKED_LIMIT, OffsetMap

GAPS = st.one_of(st.integers(1, 9), st.integers(1, 50_000), st.sampled_from((MARKED_LIMIT // 2, MARKED_LIMIT, 1 << 60)))
KEYS = st.sampled_from((b"", b"a", b"b", b"c" * 64, b"d" * 65, b"e" * 65))
RECORDS = st.lists(st.tuples(GAPS, KEYS), max_size=40)
GRAIN = 4096 * 8
"""The bitmap grows by this number of offsets if they are consecutive."""
LIMITS = st.one_of(st.just(1 << 40), st.integers(0, 20_000))


def filled(limit_bytes: int, first: int, records: list[tuple[int, bytes]]) -> tuple[OffsetMap, list[tuple[int, bytes]]]:
    """A map of records, each given as its distance to the previous one and its key; and the records that found room."""
    known, offset, put = OffsetMap(limit_bytes, first), first - 1, []
    for gap, key in records:
        offset += gap
        if not known.put(key, offset):
            break
        put.append((offset, key))
    return known, put


@given(limit_bytes=LIMITS, first=st.integers(0, 1 << 61), records=RECORDS)
@example(limit_bytes=1 << 40, first=7, records=[(1, b"a"), (GRAIN - 1, b"a"), (1, b"a"), (1, b"a")])
@example(limit_bytes=5000, first=7, records=[(1, b"a"), (GRAIN, b"a"), (1, b"a"), (1, b"a")])
@example(limit_bytes=1 << 40, first=7, records=[(MARKED_LIMIT - 1, b"a"), (1, b"a"), (1, b"b"), (1, b"b")])
def test_a_record_is_replaced_if_a_newer_one_has_its_key(
    limit_bytes: int, first: int, records: list[tuple[int, bytes]]
) -> None:
    known, put = filled(limit_bytes, first, records)
    newest = {key: offset for offset, key in put}
    assert len(known) == len(newest)
    assert known.latest == (put[-1][0] if put else -1)
    for offset, key in put:
        assert known.is_replaced(key, offset) == (offset < newest[key])
    for _, key in records:
        assert known.is_replaced(key, first - 1) == (key in newest), "a record of the part that was clean before"


@given(limit_bytes=st.integers(0, 20_000), gaps=st.lists(GAPS, min_size=1, max_size=80))
@example(limit_bytes=9000, gaps=[1] * 80)
def test_entries_and_bitmap_fit_into_the_limit(limit_bytes: int, gaps: list[int]) -> None:
    known, put = filled(limit_bytes, 0, [(gap, b"%064d" % number) for number, gap in enumerate(gaps)])
    used_bytes = len(put) * (ENTRY_BYTES + 64) + known.marked // 8
    assert used_bytes <= max(limit_bytes, 1) + ENTRY_BYTES + 64
    assert put, "one entry always fits"
    assert len(put) == len(gaps) or used_bytes >= limit_bytes


@given(gaps=st.lists(GAPS, max_size=40))
def test_the_bitmap_has_a_limit_of_its_own(gaps: list[int]) -> None:
    known, _ = filled(1 << 40, 0, [(gap, b"a") for gap in gaps])
    assert known.marked <= MARKED_LIMIT
