"""Before the broker's modules are imported: signals are heard, and the collector of cycles is calmed."""

from __future__ import annotations

import gc
import signal
import sys
from types import FrameType
from typing import NoReturn

GC_THRESHOLDS = (50_000, 20, 50)
"""Serving makes many objects and hardly a cycle. Python's own (700, 10, 10) look through all of them again and again:
2,000 topics took a quarter more CPU to make."""

_heard: list[int] = []


def prepare(*, until_hangup: bool = False) -> None:
    """From now on SIGINT and SIGTERM end the process with exit code 0: nothing needs a clean stop yet.

    until_hangup: so does SIGHUP, sent when the terminal is closed, unless it is ignored, as under `nohup`.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    if until_hangup and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hang_up)


def ends_at_hangup() -> bool:
    """Whether SIGHUP is to end the process."""
    return signal.getsignal(signal.SIGHUP) is _hang_up


def was_asked_to_stop() -> bool:
    """A signal has come. Where it came inside a callback of the interpreter, its SystemExit was dropped there."""
    return bool(_heard)


def ignore_signals() -> None:
    """The process ends anyhow: what comes now must not change its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _hang_up(number: int, frame: FrameType | None) -> NoReturn:
    _leave(number, frame)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    _heard.append(number)
    ignore_signals()
    sys.exit(0)
