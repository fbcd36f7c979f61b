"""When the metadata is current, and who waits for it: a broker is given its first Image then, and not before.

An Image that was read from this node's own disk may be of the leader's epoch and lack what committed later in it. What
such an Image does not have would be taken for deleted, so a leader must have said in this run how far it had committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kpybroker.errors import ConfigError
from kpybroker.raft.core.state import NOBODY
from kpybroker.raft.driver import Driver

log = logging.getLogger(__name__)

SAID_AFTER_MS = 5000
"""A node that waits for a leader says so, and goes on waiting."""


class Current:
    """Callbacks until the Image is current; the quorum says when to look."""

    def __init__(self, driver: Driver, why_in_vain: Callable[[], str | None]) -> None:
        """`why_in_vain` says why no leader can be elected, if that is known."""
        self._driver = driver
        self._why_in_vain = why_in_vain
        self._callbacks: list[Callable[[], None]] = []
        self._refused: asyncio.Future[str] | None = None
        self._told = (-1, 0)
        """An epoch, and how far its leader had committed when it first said so."""

    def told(self, epoch: int, committed: int) -> None:
        """The leader of an epoch says how far it has committed."""
        if epoch > self._told[0] and committed > 0:
            self._told = epoch, committed
            self.look()

    def is_reached(self, epoch: int, committed: int) -> bool:
        """The leader of the epoch has said how far it had committed, and this is as far."""
        return self._told[0] == epoch and committed >= self._told[1]

    @property
    def is_current(self) -> bool:
        """The Image has what the leader of this epoch had committed: all that was before its epoch, at least."""
        driver = self._driver
        if driver.leader_id == NOBODY or driver.image.epoch != driver.epoch or driver.metadata.is_reading:
            return False
        return driver.is_leader or self.is_reached(driver.epoch, driver.committed)

    def then(self, callback: Callable[[], None]) -> None:
        """Call once: now, or as soon as the Image is current."""
        self._callbacks.append(callback)
        self.look()

    def look(self) -> None:
        """It may be current now."""
        if self._callbacks and self.is_current:
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()

    def refuse(self, why: str) -> None:
        """The other nodes will never accept this one: end the wait with this reason."""
        if self._refused is not None and not self._refused.done():
            self._refused.set_result(why)

    async def wait(self, timeout_ms: int) -> None:
        """Wait until it is current. Raises ConfigError: no leader in time, or the other nodes refuse this one."""
        waiting: asyncio.Future[str]
        self._refused = waiting = asyncio.get_running_loop().create_future()
        self.then(lambda: None if waiting.done() else waiting.set_result(""))
        said = asyncio.get_running_loop().call_later(SAID_AFTER_MS / 1000, self._say, timeout_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                refused = await waiting
        except TimeoutError:
            raise ConfigError(
                f"node {self._driver.identity.node_id} found no leader of the metadata quorum within {timeout_ms} ms"
                f"{self._why}; check controller.quorum.voters or controller.quorum.bootstrap.servers, and that a "
                "majority of the voters run"
            ) from None
        finally:
            said.cancel()
        if refused:
            raise ConfigError(refused)

    def _say(self, timeout_ms: int) -> None:
        me = self._driver.identity.node_id
        log.warning("node %d waits up to %d ms for a leader of the metadata quorum%s", me, timeout_ms, self._why)

    @property
    def _why(self) -> str:
        why = self._why_in_vain()
        return "" if why is None else f": {why}"
