"""The background tasks of one node, and the reason why the node had to stop, if one of them failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from kpybroker.tasks import begin

log = logging.getLogger(__name__)


class BackgroundTasks:
    """Tasks that run until the node stops. If one raises, the node has failed."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the reason when the node cannot continue; its owner then stops it."""
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until `cancel`. If it raises, the reason for the failure begins with `what`."""
        self._tasks.append(begin(work, what, self.fail))

    def fail(self, reason: str) -> None:
        """Report that this node cannot continue; only the first reason is kept."""
        log.critical("%s", reason)
        if not self.failed.done():
            self.failed.set_result(reason)

    def cancel(self) -> None:
        """Stop all tasks."""
        for task in self._tasks:
            task.cancel()
