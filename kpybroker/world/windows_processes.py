"""Processes on Windows, which has no signals between processes.

A broker can be asked to stop with an event object that has its process id in the name, as nginx does.
"""

from __future__ import annotations

import contextlib
import ctypes
import msvcrt
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

assert sys.platform == "win32", "use posix_processes.py"

RESUME_AT_END = """
import ctypes, sys
sys.stdin.buffer.read()
kernel = ctypes.WinDLL("kernel32")
kernel.OpenProcess.restype = ctypes.c_void_p
ctypes.WinDLL("ntdll").NtResumeProcess(ctypes.c_void_p(kernel.OpenProcess(0x0800, False, int(sys.argv[1]))))
"""
"""The program that lets the process with the given id continue when standard input is closed."""

_EVENT = "Local\\kpybroker-stop-{}"
_EVENT_MODIFY_STATE, _SYNCHRONIZE, _PROCESS_SUSPEND_RESUME = 0x0002, 0x00100000, 0x0800
_WAIT_OBJECT_0, _WAIT_TIMEOUT, _INFINITE = 0, 0x102, 0xFFFFFFFF
_ERROR_ACCESS_DENIED = 5

_kernel = ctypes.WinDLL("kernel32", use_last_error=True)
_kernel.OpenProcess.restype = _kernel.OpenEventW.restype = _kernel.CreateEventW.restype = ctypes.c_void_p
_kernel.CloseHandle.argtypes = _kernel.SetEvent.argtypes = [ctypes.c_void_p]
_kernel.WaitForSingleObject.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
_kernel.WaitForSingleObject.restype = ctypes.c_uint32
_system = ctypes.WinDLL("ntdll")
_system.NtSuspendProcess.argtypes = _system.NtResumeProcess.argtypes = [ctypes.c_void_p]


def apart(keeps_open: Sequence[int] = ()) -> dict[str, Any]:
    """The options of Popen for a process that Ctrl-C and the end of the console do not reach.

    `keeps_open`: descriptors that stay open until it has ended.
    """
    options: dict[str, Any] = {
        "creationflags": subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP,
    }
    if keeps_open:
        handles = [msvcrt.get_osfhandle(descriptor) for descriptor in keeps_open]
        for handle in handles:
            os.set_handle_inheritable(handle, True)
        options["startupinfo"] = subprocess.STARTUPINFO(lpAttributeList={"handle_list": handles})
    return options


def after_fork(callback: Callable[[], None]) -> None:
    """Does nothing, because Windows has no fork."""


@contextlib.contextmanager
def _process(pid: int, access: int) -> Iterator[int]:
    """Open a process. Raises OSError."""
    handle = _kernel.OpenProcess(access, False, pid)
    if not handle:
        raise ctypes.WinError(ctypes.get_last_error())
    try:
        yield handle
    finally:
        _kernel.CloseHandle(handle)


def is_running(pid: int) -> bool:
    """Whether there is a process with this id."""
    try:
        with _process(pid, _SYNCHRONIZE) as handle:
            return bool(_kernel.WaitForSingleObject(handle, 0) == _WAIT_TIMEOUT)
    except OSError as error:
        return error.winerror == _ERROR_ACCESS_DENIED  # a process of another user


def ask_to_stop(pid: int) -> None:
    """Ask a broker to stop. Raises ProcessLookupError if there is none, OSError."""
    event = _kernel.OpenEventW(_EVENT_MODIFY_STATE, False, _EVENT.format(pid))
    if not event:
        raise ProcessLookupError(f"no broker has the process id {pid}")
    try:
        if not _kernel.SetEvent(event):
            raise ctypes.WinError(ctypes.get_last_error())
    finally:
        _kernel.CloseHandle(event)


def when_asked_to_stop(callback: Callable[[], None]) -> None:
    """Call a function on a thread when `ask_to_stop` is called for this process. Raises OSError."""
    event = _kernel.CreateEventW(None, True, False, _EVENT.format(os.getpid()))
    if not event:
        raise ctypes.WinError(ctypes.get_last_error())

    def wait() -> None:
        if _kernel.WaitForSingleObject(event, _INFINITE) == _WAIT_OBJECT_0:
            callback()

    threading.Thread(target=wait, daemon=True).start()


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a child whose standard input is a pipe to stop."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it has already ended
        process.stdin.close()


def pause(process: subprocess.Popen[bytes]) -> None:
    """Halt a child until `resume`. Raises OSError."""
    with _process(process.pid, _PROCESS_SUSPEND_RESUME) as handle:
        _system.NtSuspendProcess(handle)


def resume(process: subprocess.Popen[bytes]) -> None:
    """Let a paused child continue. Raises OSError."""
    with _process(process.pid, _PROCESS_SUSPEND_RESUME) as handle:
        _system.NtResumeProcess(handle)
