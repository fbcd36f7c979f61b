"""The event loop of a node."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's if it is installed, else asyncio's.

    On Windows this is the loop with `select`, which waits for at most 512 sockets. The other one of asyncio (Proactor)
    passes data to a protocol that has paused reading and has no room for it, which is an error there.
    """
    if sys.platform == "win32":
        loop = asyncio.SelectorEventLoop()
        wake_for_signals(loop)
        return loop
    with contextlib.suppress(ImportError):
        import uvloop

        found: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return found
    return asyncio.new_event_loop()


def wake_for_signals(loop: asyncio.AbstractEventLoop) -> None:
    """End the loop's wait when a signal arrives, because on Windows Ctrl-C does not interrupt `select`."""
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setblocking(False)

    def drain() -> None:
        with contextlib.suppress(BlockingIOError):
            ours.recv(4096)

    loop.add_reader(ours, drain)
    signal.set_wakeup_fd(theirs.detach(), warn_on_full_buffer=False)
