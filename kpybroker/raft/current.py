"""Who waits until the metadata is current: a broker is given its first Image then, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from kpybroker.errors import ConfigError

if TYPE_CHECKING:
    from kpybroker.raft.quorum import Quorum


class Current:
    """Callbacks until the Image is current; the quorum says when to look."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._callbacks: list[Callable[[], None]] = []
        self._refused: asyncio.Future[str] | None = None

    def then(self, callback: Callable[[], None]) -> None:
        """Call once: now, or as soon as the Image is current."""
        self._callbacks.append(callback)
        self.look()

    def look(self) -> None:
        """It may be current now."""
        if self._callbacks and self._quorum.is_current:
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()

    def refuse(self, why: str) -> None:
        """The others will never have this node: whoever waits need not wait any longer."""
        if self._refused is not None and not self._refused.done():
            self._refused.set_result(why)

    async def wait(self, timeout_ms: int) -> None:
        """Until it is current. Raises ConfigError: nobody leads for so long, or the others do not have this node."""
        waiting: asyncio.Future[str]
        self._refused = waiting = asyncio.get_running_loop().create_future()
        self.then(lambda: None if waiting.done() else waiting.set_result(""))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                refused = await waiting
        except TimeoutError:
            raise ConfigError(
                f"node {self._quorum.identity.node_id} found no leader of the metadata quorum within {timeout_ms} ms; "
                "check controller.quorum.voters or controller.quorum.bootstrap.servers, and that a majority of the "
                "voters run"
            ) from None
        if refused:
            raise ConfigError(refused)
