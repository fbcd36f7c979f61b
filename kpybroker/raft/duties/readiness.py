"""Determines when the Image is current, so that a broker may adopt its first Image.

The Image that a node reads from its own disk may belong to the leader's epoch and yet lack records that were committed
later in that epoch. If a partition were missing from such an Image, the broker would treat it as deleted. So the Image
counts as current only when it has all records that the leader has reported as committed since this node started.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kpybroker.errors import ConfigError
from kpybroker.raft.core.state import NOBODY
from kpybroker.raft.driver import Driver
from kpybroker.raft.duties.voter_rpcs import VoterRpcs

log = logging.getLogger(__name__)

WARN_AFTER_MS = 5000
"""The time after which a node that waits for a leader logs a warning. It continues to wait."""


class Readiness:
    """Calls callbacks when the Image becomes current."""

    def __init__(self, driver: Driver, voter_rpcs: VoterRpcs) -> None:
        self._driver = driver
        self._voter_rpcs = voter_rpcs
        self._callbacks: list[Callable[[], None]] = []
        self._refused: asyncio.Future[str] | None = None
        voter_rpcs.excluded.append(self.refuse)
        self._target = (-1, 0)
        """An epoch, and the first high watermark that its leader reported."""

    def leader_committed(self, epoch: int, high_watermark: int) -> None:
        """Record that the leader of `epoch` has responded to a fetch with this high watermark."""
        if epoch > self._target[0] and high_watermark > 0:
            self._target = epoch, high_watermark
            self.look_again()

    @property
    def is_current(self) -> bool:
        """Whether the Image has all records that the leader of this epoch had committed when it first responded. These
        include all committed records from before the epoch."""
        driver = self._driver
        if driver.leader_id == NOBODY or driver.image.epoch != driver.epoch or driver.metadata.is_reading:
            return False
        return driver.is_leader or self._is_reached(driver.epoch, driver.metadata.applied)

    def _is_reached(self, epoch: int, applied: int) -> bool:
        return self._target[0] == epoch and applied >= self._target[1]

    def when_current(self, callback: Callable[[], None]) -> None:
        """Call the callback once: either now, or as soon as the Image is current."""
        self._callbacks.append(callback)
        self.look_again()

    def look_again(self) -> None:
        """Call the callbacks if the Image is current."""
        if self._callbacks and self.is_current:
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()

    def refuse(self, reason: str) -> None:
        """End `wait` with this reason, because this node can never follow the quorum."""
        if self._refused is not None and not self._refused.done():
            self._refused.set_result(reason)

    async def wait(self, timeout_ms: int) -> None:
        """Wait until the Image is current. Raises ConfigError if no leader was found in time, or if `refuse` was
        called."""
        waiting: asyncio.Future[str]
        self._refused = waiting = asyncio.get_running_loop().create_future()
        self.when_current(lambda: None if waiting.done() else waiting.set_result(""))
        warning = asyncio.get_running_loop().call_later(WARN_AFTER_MS / 1000, self._warn, timeout_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                refused = await waiting
        except TimeoutError:
            raise ConfigError(
                f"node {self._driver.identity.node_id} found no leader of the metadata quorum within {timeout_ms} ms"
                f"{self._shown_reason}; check controller.quorum.voters or controller.quorum.bootstrap.servers, and "
                "check that a majority of the voters is running"
            ) from None
        finally:
            warning.cancel()
        if refused:
            raise ConfigError(refused)

    def _warn(self, timeout_ms: int) -> None:
        me = self._driver.identity.node_id
        log.warning(
            "node %d is waiting for a leader of the metadata quorum, for up to %d ms%s",
            me,
            timeout_ms,
            self._shown_reason,
        )

    @property
    def _shown_reason(self) -> str:
        reason = self._voter_rpcs.no_leader_reason
        return "" if reason is None else f": {reason}"
