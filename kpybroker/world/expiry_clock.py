"""The clock by which sessions, transactions, locks and offsets expire. A test can advance it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """A function that is called once when the clock has reached a time, unless it is cancelled before."""

    __slots__ = ("_clock", "_fire", "_timer", "at_ms")

    def __init__(self, clock: ExpiryClock, at_ms: int, fire: Callable[[], None]) -> None:
        self.at_ms = at_ms
        self._clock = clock
        self._fire = fire
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, delay_ms: int) -> None:
        """Let it ring after `delay_ms` of real time, instead of the time set before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self.ring)

    def ring(self) -> None:
        """Call the function now."""
        self.cancel()
        self._fire()

    def cancel(self) -> None:
        """Do not call the function any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._clock.forget(self)


class ExpiryClock:
    """The steady clock, plus the time by which a test has advanced it. All times are in milliseconds.

    What nodes expect of each other and of their disks uses the steady clock itself, because advancing a clock does not
    make the other node or the disk work faster.
    """

    def __init__(self, steady_ms: Callable[[], int], ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms
        """The time by which this clock has been advanced."""
        self._steady_ms = steady_ms
        self._alarms: dict[Alarm, None] = {}

    def now_ms(self) -> int:
        """The time by this clock. It never goes backward, and cannot be compared with times of another process."""
        return self._steady_ms() + self.ahead_ms

    def call_at(self, at_ms: int, fire: Callable[[], None]) -> Alarm:
        """Call `fire` from the event loop when the clock has reached `at_ms`."""
        alarm = Alarm(self, at_ms, fire)
        self._alarms[alarm] = None
        alarm.arm(max(at_ms - self.now_ms(), 1))
        return alarm

    def forget(self, alarm: Alarm) -> None:
        """Called by an alarm that has rung or was cancelled."""
        self._alarms.pop(alarm, None)

    def next_ms(self) -> int | None:
        """The time until the next alarm, at least 0; None if there is no alarm."""
        earliest = min((alarm.at_ms for alarm in self._alarms), default=None)
        return None if earliest is None else max(earliest - self.now_ms(), 0)

    def advance(self, by_ms: int) -> None:
        """Move the clock forward, and let the alarms ring that are due, in order of their times."""
        self.ahead_ms += by_ms
        now_ms = self.now_ms()
        for alarm in sorted(self._alarms, key=lambda each: each.at_ms):
            if alarm not in self._alarms:
                continue  # an alarm that rang before has cancelled it
            if alarm.at_ms <= now_ms:
                alarm.ring()
            else:
                alarm.arm(alarm.at_ms - now_ms)
