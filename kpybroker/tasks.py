"""Starts background tasks. An exception in a task is a bug, after which the node must not continue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def begin(work: Coroutine[Any, Any, None], what: str, fail: Callable[[str], None]) -> asyncio.Task[None]:
    """Start a task. If it raises an exception, `fail` is called with the reason."""

    def ended(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            fail(f"bug in {what}: {error!r}")

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task
