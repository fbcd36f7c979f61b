"""Mutes the connection of a throttled client: its requests wait for a while (KIP-219).

A pause is queued among the connection's replies like an incomplete reply, and nothing is sent for it. Later requests
wait in the receive buffer and, when that is full, in the sockets.
"""

from __future__ import annotations

import asyncio

from kpybroker.call import Reply
from kpybroker.server.connections.accepted import Accepted


class Pause(Reply):
    """Begins when it is created, and ends some time after `start`."""

    __slots__ = ("_pauses", "_timer")

    def __init__(self, pauses: Pauses) -> None:
        super().__init__()
        self._pauses = pauses
        self._timer: asyncio.TimerHandle | None = None

    def start(self, wait_ms: int) -> None:
        """End after this time."""
        if not self.done:
            self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.end)

    def end(self) -> None:
        self._forget()
        self.complete(None)

    def abandon(self) -> None:
        self._forget()
        self.discard()

    def _forget(self) -> None:
        self._pauses.open.discard(self)
        if self._timer is not None:
            self._timer.cancel()


class Pauses:
    """The pauses of all connections of a server; at most a handful for each connection."""

    def __init__(self) -> None:
        self.open: set[Pause] = set()
        self._stopped = False

    def begin(self, connection: Accepted) -> Pause:
        """Run no further request of this connection until the pause ends."""
        pause = Pause(self)
        if self._stopped:
            pause.end()
        else:
            self.open.add(pause)
            connection.await_reply(pause)
        return pause

    def end_all(self) -> None:
        """End every pause."""
        for pause in list(self.open):
            pause.end()

    def stop(self) -> None:
        """The server stops: end every pause."""
        self._stopped = True
        self.end_all()
