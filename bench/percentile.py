"""Percentiles without interpolation: always one of the measured values."""

from collections.abc import Sequence
from math import ceil


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` % of the values do not exceed."""
    assert values, "no values"
    return sorted(values)[max(0, ceil(len(values) * percent / 100) - 1)]
