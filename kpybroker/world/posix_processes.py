"""Processes on Linux and macOS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

assert sys.platform != "win32", "use windows_processes.py"

RESUME_AT_END = """
import os, signal, sys
sys.stdin.buffer.read()
os.kill(int(sys.argv[1]), signal.SIGCONT)
"""
"""The program that lets the process with the given id continue when standard input is closed."""


def apart(keeps_open: Sequence[int] = ()) -> dict[str, Any]:
    """The options of Popen for a process that Ctrl-C and the end of the terminal do not reach.

    `keeps_open`: descriptors that stay open until it has ended.
    """
    return {"start_new_session": True, "pass_fds": tuple(keeps_open)}


def after_fork(callback: Callable[[], None]) -> None:
    """Call a function in each child that this process forks, before it goes on."""
    os.register_at_fork(after_in_child=callback)


def is_running(pid: int) -> bool:
    """Whether there is a process with this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # a process of another user
        return True
    return True


def ask_to_stop(pid: int) -> None:
    """Ask a broker to stop. Raises ProcessLookupError if there is none, OSError."""
    os.kill(pid, signal.SIGTERM)


def when_asked_to_stop(callback: Callable[[], None]) -> None:
    """Does nothing, because `ask_to_stop` sends a signal."""


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a child whose standard input is a pipe to stop."""
    process.terminate()


def pause(process: subprocess.Popen[bytes]) -> None:
    """Halt a child until `resume`."""
    process.send_signal(signal.SIGSTOP)
    if sys.platform == "linux":  # the signal takes effect later
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def resume(process: subprocess.Popen[bytes]) -> None:
    """Let a paused child continue."""
    process.send_signal(signal.SIGCONT)
