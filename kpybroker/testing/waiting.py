"""Waits until something has become true."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_EVERY_S = 0.01


def becomes_true(is_met: Callable[[float], bool], timeout_s: float) -> bool:
    """Whether it becomes true in time. `is_met` gets the seconds that are left.

    Raises ValueError for a time that is negative or not a number.
    """
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise TypeError(f"timeout_s={timeout_s!r}: give a number of seconds, such as timeout_s=10")
    if not timeout_s >= 0:
        raise ValueError(f"timeout_s={timeout_s}: must be 0 or more seconds")
    deadline = time.monotonic() + timeout_s
    while not is_met(max(deadline - time.monotonic(), 0.0)):
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY_S)
    return True
