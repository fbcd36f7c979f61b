"""Starts, stops and halts processes in the way of this system."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from kpybroker.world.windows_processes import (
        RESUME_AT_END,
        after_fork,
        apart,
        ask_to_stop,
        is_running,
        pause,
        resume,
        stop,
        when_asked_to_stop,
    )
else:
    from kpybroker.world.posix_processes import (
        RESUME_AT_END,
        after_fork,
        apart,
        ask_to_stop,
        is_running,
        pause,
        resume,
        stop,
        when_asked_to_stop,
    )

__all__ = [
    "RESUME_AT_END",
    "after_fork",
    "apart",
    "ask_to_stop",
    "is_running",
    "pause",
    "resume",
    "stop",
    "when_asked_to_stop",
]
