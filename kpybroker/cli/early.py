"""Signals while the broker's modules are still being imported: nothing needs a clean stop yet, so leave at once."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

_heard: list[int] = []


def listen() -> None:
    """From now on SIGINT and SIGTERM end the process with exit code 0."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)


def was_asked_to_stop() -> bool:
    """A signal has come. Where it came inside a callback of the interpreter, its SystemExit was dropped there."""
    return bool(_heard)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    _heard.append(number)
    sys.exit(0)
