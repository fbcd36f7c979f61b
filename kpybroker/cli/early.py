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


def prepare() -> None:
    """From now on SIGINT and SIGTERM end the process with exit code 0: nothing needs a clean stop yet."""
    gc.set_threshold(*GC_THRESHOLDS)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)


def was_asked_to_stop() -> bool:
    """A signal has come. Where it came inside a callback of the interpreter, its SystemExit was dropped there."""
    return bool(_heard)


def ignore_signals() -> None:
    """The process ends anyhow: what comes now must not change its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    _heard.append(number)
    ignore_signals()
    sys.exit(0)
