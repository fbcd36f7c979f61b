"""Installs signal handlers and sets up the garbage collector before the broker's modules are imported."""

from __future__ import annotations

import gc
import signal
import sys
from types import FrameType
from typing import NoReturn

GC_THRESHOLDS = (1_000_000, 20, 50)
"""Until it is ready, a broker creates many objects and hardly any cycles: no collection is due before that, unless it
has much data to load. Nine collections would take 14 ms of the 250 ms of a start."""

if sys.platform == "win32":
    HANGUP = signal.SIGBREAK
else:
    HANGUP = signal.SIGHUP
"""The signal when the terminal is closed, and on Windows also for Ctrl-Break."""

_heard: list[int] = []


def prepare(*, until_hangup: bool = False) -> None:
    """Let SIGINT and SIGTERM end the process with exit code 0 from now on, because nothing needs a clean stop yet.

    `until_hangup`: HANGUP does the same unless it is ignored (`nohup`).
    """
    gc.set_threshold(*GC_THRESHOLDS)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    if until_hangup and signal.getsignal(HANGUP) is not signal.SIG_IGN:
        signal.signal(HANGUP, _hang_up)


def ends_at_hangup() -> bool:
    """Whether HANGUP ends the process."""
    return signal.getsignal(HANGUP) is _hang_up


def was_asked_to_stop() -> bool:
    """Whether a signal has arrived. If it arrives inside certain callbacks, the interpreter drops the SystemExit."""
    return bool(_heard)


def ignore_signals() -> None:
    """Ignore further signals, because the process is ending and they must not change its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, HANGUP):
        signal.signal(number, signal.SIG_IGN)


def _hang_up(number: int, frame: FrameType | None) -> NoReturn:
    _leave(number, frame)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    _heard.append(number)
    ignore_signals()
    sys.exit(0)
