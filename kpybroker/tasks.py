"""Tasks of the quorum: one that ends in anything but its work is a bug, after which this node must not go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def begin(work: Coroutine[Any, Any, None], what: str, fail: Callable[[str], None]) -> asyncio.Task[None]:
    """Run it; `fail` is told what it raised, if it does."""

    def ended(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            fail(f"bug in {what}: {error!r}")

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task
