"""A node's event loop wakes when a signal arrives, also where signals do not interrupt a wait."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import threading

from kpybroker.world.event_loops import wake_for_signals

LIMIT_S = 20


class Told(selectors.DefaultSelector):  # type: ignore[misc]
    """Says when it is about to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            self.waits.set()
        return super().select(timeout)


def test_a_signal_wakes_the_loop() -> None:
    selector, done, late = Told(), threading.Event(), []
    loop = asyncio.SelectorEventLoop(selector)
    wake_for_signals(loop)
    heard = loop.create_future()

    def send() -> None:
        selector.waits.wait(LIMIT_S)
        os.kill(os.getpid(), signal.SIGUSR1)
        if not done.wait(LIMIT_S):
            late.append("the loop did not wake")
            loop.call_soon_threadsafe(lambda: None)

    before = signal.signal(signal.SIGUSR1, lambda *_: heard.set_result(None))  # which does not wake the loop
    sending = threading.Thread(target=send)
    try:
        sending.start()
        loop.run_until_complete(heard)
    finally:
        done.set()
        sending.join()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGUSR1, before)
        loop.close()
    assert late == []
