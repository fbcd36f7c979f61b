"""A node's event loop wakes when a signal arrives, also where signals do not interrupt a wait."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

from kpybroker.world.event_loops import wake_for_signals

LIMIT_S = 20


def test_a_signal_wakes_the_loop() -> None:
    loop = asyncio.SelectorEventLoop()
    wake_for_signals(loop)
    heard = loop.create_future()
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.set_result(None))  # which does not wake the loop
    try:
        loop.call_soon(threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR1)).start)
        loop.run_until_complete(asyncio.wait_for(heard, LIMIT_S))
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGUSR1, before)
        loop.close()
