"""Tests that rates and permits match Kafka's, and that clients that obey the throttle time stay within the quota."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.quotas.rate import LONGEST_MS, Permits, Rate, Windows

KAFKAS = json.loads((Path(__file__).parent / "rates-4.3.1.json").read_text())
"""The output of oracle/Rates.java."""
WINDOWS = st.builds(Windows, st.integers(1, 12), st.sampled_from([100, 1000, 3000]))
LIMITS = st.integers(1, 5000)


@pytest.mark.parametrize("number", [n for n, told in enumerate(KAFKAS) if told["kind"] == "rate"])
def test_a_rate_equals_kafkas(number: int) -> None:
    told = KAFKAS[number]
    rate, now_ms = Rate(Windows(told["samples"], told["window_ms"])), 1_700_000_000_000
    for pause_ms, value, measured, wait_ms in told["steps"]:
        now_ms += int(pause_ms)
        rate.record(value, now_ms)
        assert rate.per_second(now_ms) == pytest.approx(measured, abs=1e-9)
        assert rate.wait_ms(told["quota"], now_ms) == wait_ms


@pytest.mark.parametrize("number", [n for n, told in enumerate(KAFKAS) if told["kind"] == "permits"])
def test_permits_equal_kafkas(number: int) -> None:
    told = KAFKAS[number]
    permits, now_ms = Permits(Windows(told["samples"], told["window_ms"])), 1_700_000_000_000
    for pause_ms, value, _, wait_ms in told["steps"]:
        now_ms += int(pause_ms)
        permits.take(value, told["quota"], now_ms)
        assert permits.wait_ms(told["quota"], now_ms) == wait_ms


def plainly(history: Sequence[tuple[int, int]], windows: Windows, now_ms: int) -> float:
    """Kafka's formula, applied to all records as (time, value)."""
    samples: list[list[tuple[int, int]]] = []
    for when_ms, value in history:
        if not samples or when_ms - samples[-1][0][0] >= windows.size_ms:
            samples.append([])
        samples[-1].append((when_ms, value))
    alive = [each for each in samples if now_ms - each[-1][0] < windows.samples * windows.size_ms]
    alive = alive[-windows.samples - 1 :]
    elapsed_ms = now_ms - alive[0][0][0] if alive else 0
    missing = max(windows.samples - 1 - elapsed_ms // windows.size_ms, 0)
    window_ms = max(elapsed_ms + missing * windows.size_ms, 1)
    return sum(value for each in alive for _, value in each) * 1000 / window_ms


STEPS = st.lists(st.tuples(st.one_of(st.integers(0, 20), st.integers(0, 40_000)), st.integers(0, 10_000)), max_size=60)


@given(WINDOWS, LIMITS, STEPS)
def test_a_rate_equals_the_simple_formula(windows: Windows, limit: int, steps: list[tuple[int, int]]) -> None:
    rate, now_ms = Rate(windows), 0
    history: list[tuple[int, int]] = []
    for pause_ms, value in steps:
        now_ms += pause_ms
        history.append((now_ms, value))
        rate.record(value, now_ms)
        assert rate.per_second(now_ms) == pytest.approx(plainly(history, windows, now_ms))
        assert (rate.wait_ms(limit, now_ms) > 0) <= (rate.per_second(now_ms) > limit)


@given(WINDOWS, LIMITS, STEPS)
def test_a_client_that_waits_as_told_stays_within_the_quota(
    windows: Windows, limit: int, steps: list[tuple[int, int]]
) -> None:
    """The bound for every span of time is twice the quota, plus the quota of all windows, plus one request that
    exceeded it. It is twice the quota because Kafka drops a sample when all windows are over, and a client that has
    waited for this time begins without samples.
    """
    rate, now_ms = Rate(windows), 0
    done: list[tuple[int, int]] = []
    for pause_ms, value in steps:
        now_ms += pause_ms
        rate.record(value, now_ms)
        done.append((now_ms, value))
        now_ms += rate.wait_ms(limit, now_ms)
    largest = max((value for _, value in done), default=0)
    spare_s = (windows.samples + 1) * windows.size_ms / 1000
    for first, (from_ms, _) in enumerate(done):
        total = 0
        for until_ms, value in done[first:]:
            total += value
            assert total <= limit * (2 * (until_ms - from_ms) / 1000 + spare_s) + largest + limit / 1000 * len(done)


@given(WINDOWS, st.integers(1, 50), st.lists(st.tuples(st.integers(0, 30_000), st.integers(1, 100)), max_size=60))
def test_permits_that_are_waited_for_stay_within_the_quota(
    windows: Windows, limit: int, steps: list[tuple[int, int]]
) -> None:
    permits, now_ms = Permits(windows), 0
    done: list[tuple[int, int]] = []
    for pause_ms, count in steps:
        now_ms += pause_ms + permits.wait_ms(limit, now_ms + pause_ms)
        permits.take(count, limit, now_ms)
        done.append((now_ms, count))
    largest = max((count for _, count in done), default=0)
    all_of_them = limit * windows.samples * windows.size_ms / 1000
    for first, (from_ms, _) in enumerate(done):
        total = 0
        for until_ms, count in done[first:]:
            total += count
            assert total <= limit * (until_ms - from_ms) / 1000 + all_of_them + largest + limit / 1000 * len(done)


def test_a_new_client_may_use_all_windows_but_one_at_once() -> None:
    windows = Windows(11, 1000)
    for value, waits in ((10_000, False), (10_001, True)):
        rate = Rate(windows)
        rate.record(value, 5000)
        assert (rate.wait_ms(1000, 5000) > 0) == waits


def test_a_wait_fits_into_its_field() -> None:
    rate = Rate(Windows())
    rate.record(1e18, 0)
    assert rate.wait_ms(1, 0) == LONGEST_MS
    assert rate.wait_ms(0, 0) == LONGEST_MS
    permits = Permits(Windows())
    permits.take(1e18, 1, 0)
    assert permits.wait_ms(1, 0) == LONGEST_MS
