"""The long run notices every lost record, and tells growing memory from memory that is flat."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bench.endurance import GROWTH_MAX, Sample, row, rows, severe
from bench.ledger import WRONG_MAX, Ledger

COUNT = 50
ranges = st.lists(st.tuples(st.integers(0, COUNT - 1), st.integers(0, COUNT - 1)).map(sorted), max_size=20)


def filled(reads: list[list[int]]) -> Ledger:
    """COUNT records were acknowledged, and these ranges were read one after the other."""
    ledger = Ledger()
    ledger.acknowledge("t", 0, COUNT)
    for first, last in reads:
        ledger.found("t", 0, first, last)
    return ledger


@given(ranges)
def test_records_may_be_read_again_but_not_skipped(reads: list[list[int]]) -> None:
    seen: set[int] = set()
    for first, last in reads:
        assume(set(range(first)) <= seen)
        seen.update(range(first, last + 1))
    ledger = filled(reads)
    assert not ledger.wrong
    assert bool(ledger.unread()) == (len(seen) < COUNT)


@given(ranges, st.integers(0, COUNT - 1))
def test_every_lost_record_is_noticed(reads: list[list[int]], lost: int) -> None:
    assume(not any(first <= lost <= last for first, last in reads))
    ledger = filled(reads)
    assert ledger.wrong or ledger.unread()


def test_a_record_that_was_never_acknowledged_is_noticed() -> None:
    ledger = filled([[0, COUNT]])
    assert ledger.unread() == [f"t-0: {COUNT} records were acknowledged, {COUNT + 1} read"]


def test_the_list_of_complaints_has_a_limit() -> None:
    ledger = filled([[2 * skipped + 1, 2 * skipped + 1] for skipped in range(WRONG_MAX + 1)])
    assert len(ledger.wrong) == WRONG_MAX
    assert ledger.wrong[0] == "t-0: records 0 to 0 were skipped"


@given(st.floats(1, 1e4), st.floats(0, 100), st.integers(8, 400))
def test_the_slope_and_the_growth_are_those_of_a_line(begin: float, per_hour: float, samples: int) -> None:
    found = row("memory", [(10.0 * each, begin + per_hour * each / 360) for each in range(samples)])
    assert found.slope == pytest.approx(per_hour, abs=1e-6)
    assert found.first <= found.second <= found.last
    assert found.growth == pytest.approx((found.last - found.second) / found.second)


@pytest.mark.parametrize(("second", "last", "is_flat"), [(100, 109, True), (100, 111, False), (100, 50, True)])
def test_the_last_quarter_is_compared_with_the_second(second: float, last: float, is_flat: bool) -> None:
    levels = [10.0] * 6 + [float(second)] * 12 + [float(last)] * 6
    memory = rows([Sample(10.0 * at, level, 50, 2.0 * at) for at, level in enumerate(levels)])[0]
    assert (memory.growth <= GROWTH_MAX) == is_flat


def test_cpu_is_a_share_of_the_time_between_samples() -> None:
    cpu = rows([Sample(10.0 * at, 60.0, 50, 2.0 * at) for at in range(24)])[2]
    assert (cpu.first, cpu.second, cpu.last) == pytest.approx((20, 20, 20))


def test_lines_at_warning_and_above_are_found() -> None:
    bad = ["2026-11-28 WARNING kpybroker: x", "2026-11-28 ERROR kpybroker: x", "Traceback (most recent call last):"]
    assert severe("\n".join(["kpybroker ready bootstrap=x", *bad, "2026-11-28 INFO kpybroker: x"])) == bad
