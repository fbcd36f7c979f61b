"""Makes every Python that has this folder in PYTHONPATH lack what Windows lacks, and refuse what Windows refuses.

What Windows has instead is imitated with what this system has: event objects are FIFOs in the temporary directory.
"""

from __future__ import annotations

import asyncio
import asyncio.selector_events
import ctypes
import errno
import fcntl
import importlib
import multiprocessing
import os
import select
import selectors
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import types
import uuid
from typing import Any

lockf, LOCK_EX, LOCK_NB = fcntl.lockf, fcntl.LOCK_EX, fcntl.LOCK_NB
CHOSEN_FOR_THIS_SYSTEM = asyncio, multiprocessing, shutil, ssl, tempfile, uuid
if not {"dev", "serve"} & set(sys.orig_argv):
    importlib.import_module("typer")  # it chooses, too, when it is imported
KERNEL = "\\\\?\\"


def plain(path: Any) -> Any:
    """A path of Windows as this system takes it."""
    is_native = isinstance(path, str) and path.startswith(KERNEL)
    return path.removeprefix(KERNEL).replace("\\", "/") if is_native else path


def is_open(path: str) -> bool:
    """Whether this process has the file open, or a file directly in the directory."""
    inside = [os.path.join(path, name) for name in os.listdir(path)] if os.path.isdir(path) else [path]
    found = [os.stat(each) for each in inside if os.path.isfile(each)]
    there = {(about.st_dev, about.st_ino) for about in found}
    for name in os.listdir("/dev/fd"):
        try:
            about = os.fstat(int(name))
        except OSError:
            continue
        if (about.st_dev, about.st_ino) in there:
            return True
    return False


def lack() -> None:
    for module, names in (
        (os, "fork forkpty setsid pread preadv pwrite pwritev fdatasync memfd_create sched_getaffinity getuid geteuid"),
        (os, "O_CLOEXEC O_DIRECTORY O_NONBLOCK RWF_NOWAIT killpg"),
        (signal, "SIGHUP SIGSTOP SIGCONT SIGUSR1 SIGUSR2 SIGPROF setitimer"),
        (select, "poll epoll"),
        (socket, "SO_REUSEPORT TCP_QUICKACK"),
    ):
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for name in ("fcntl", "resource", "pwd", "grp", "termios", "uvloop"):
        sys.modules[name] = None  # type: ignore[assignment]


def refuse() -> None:
    for name in (
        "replace",
        "rename",
        "unlink",
        "rmdir",
        "open",
        "mkdir",
        "makedirs",
        "stat",
        "lstat",
        "listdir",
        "chmod",
    ):
        setattr(os, name, plainly(getattr(os, name), refuses_open=name in ("replace", "rename", "unlink")))
    shutil.disk_usage = plainly(shutil.disk_usage)
    kill = os.kill

    def terminate(pid: int, number: int) -> None:
        assert number > 2, "0 and 1 send Ctrl-C and Ctrl-Break"
        kill(pid, signal.SIGKILL)

    def send_signal(process: subprocess.Popen[bytes], number: int) -> None:
        if process.poll() is None:
            terminate(process.pid, number)

    def no_pipes(loop: Any, file: Any, *_: Any) -> None:
        if not stat.S_ISSOCK(os.fstat(file if isinstance(file, int) else file.fileno()).st_mode):
            raise OSError(errno.ENOTSOCK, "select waits for sockets only")
        add_reader(loop, file, *_)

    add_reader = asyncio.selector_events.BaseSelectorEventLoop.add_reader
    asyncio.selector_events.BaseSelectorEventLoop.add_reader = no_pipes  # type: ignore[method-assign]
    os.kill, subprocess.Popen.send_signal = terminate, send_signal  # type: ignore[method-assign]
    selectors.DefaultSelector = selectors.SelectSelector  # type: ignore[misc]


def plainly(function: Any, *, refuses_open: bool = False) -> Any:
    def call(*given: Any, **options: Any) -> Any:
        paths = [plain(each) for each in given]
        if refuses_open:
            for path in paths:
                if isinstance(path, str) and os.path.exists(path) and is_open(path):
                    raise PermissionError(errno.EACCES, "the process has the file open", path)
        return function(*paths, **options)

    return call


class Call:
    """A function whose types can be declared."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.restype: Any = None
        self.argtypes: Any = None

    def __call__(self, *given: Any) -> Any:
        return self.function(*given)


def event_path(name: str) -> str:
    return os.path.join(tempfile.gettempdir(), name.replace("\\", "."))


def create_event(_: None, is_manual: bool, is_set: bool, name: str) -> str:
    os.mkfifo(event_path(name))
    return event_path(name)


def open_event(access: int, _: bool, name: str) -> str | None:
    return event_path(name) if os.path.exists(event_path(name)) else None


def set_event(path: str) -> bool:
    with open(path, "wb"):
        return True


real_kill, pause, go_on = os.kill, signal.SIGSTOP, signal.SIGCONT


def open_process(access: int, _: bool, pid: int) -> int | None:
    try:
        real_kill(pid, 0)
    except ProcessLookupError:
        return None
    return pid


def wait(handle: Any, most_ms: int) -> int:
    if isinstance(handle, int):
        return 0x102  # the process is running
    with open(handle, "rb") as event:
        event.read()
    return 0


CALLS = {
    "OpenProcess": Call(open_process),
    "CloseHandle": Call(lambda handle: True),
    "OpenEventW": Call(open_event),
    "CreateEventW": Call(create_event),
    "SetEvent": Call(set_event),
    "WaitForSingleObject": Call(wait),
    "NtSuspendProcess": Call(lambda pid: real_kill(pid, pause)),
    "NtResumeProcess": Call(lambda pid: real_kill(pid, go_on)),
}


def have() -> None:
    signal.SIGBREAK = signal.SIGQUIT  # type: ignore[attr-defined]
    socket.SO_EXCLUSIVEADDRUSE = socket.SO_KEEPALIVE  # type: ignore[attr-defined]
    library = types.SimpleNamespace(**CALLS)
    ctypes.WinDLL = lambda name, **_: library  # type: ignore[attr-defined]
    ctypes.get_last_error = lambda: 87  # type: ignore[attr-defined]

    def failed(number: int) -> OSError:
        error = OSError(errno.EINVAL, "the parameter is incorrect")
        error.winerror = number  # type: ignore[attr-defined]
        return error

    ctypes.WinError = failed  # type: ignore[attr-defined]
    msvcrt: Any = types.ModuleType("msvcrt")
    msvcrt.LK_NBLCK = 2
    msvcrt.locking = lambda descriptor, mode, size: lockf(descriptor, LOCK_EX | LOCK_NB)
    msvcrt.get_osfhandle = lambda descriptor: descriptor
    sys.modules["msvcrt"] = msvcrt
    os.set_handle_inheritable = lambda handle, is_inheritable: None  # type: ignore[attr-defined]
    subprocess.CREATE_NO_WINDOW, subprocess.CREATE_NEW_PROCESS_GROUP = 1, 2  # type: ignore[attr-defined]
    subprocess.STARTUPINFO = types.SimpleNamespace  # type: ignore[attr-defined]
    begin = subprocess.Popen.__init__

    def start(process: Any, *given: Any, **options: Any) -> None:
        assert "start_new_session" not in options
        assert not options.get("pass_fds")
        info = options.pop("startupinfo", None)
        handles = [] if info is None else info.lpAttributeList["handle_list"]
        is_apart = options.pop("creationflags", 0) == 3
        begin(process, *given, start_new_session=is_apart, pass_fds=handles, **options)

    subprocess.Popen.__init__ = start  # type: ignore[method-assign]


lack()
have()
refuse()
for stream in (sys.stdout, sys.stderr):
    if stream is not None:
        stream.reconfigure(newline="\r\n")  # type: ignore[union-attr]
sys.platform = "win32"
