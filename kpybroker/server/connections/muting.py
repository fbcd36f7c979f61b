"""Mutes the connections of throttled clients, so that their requests wait for a while (KIP-219).

A pause is queued with the connection's replies like an incomplete reply, but nothing is sent for it. Later requests
wait in the receive buffer and, when it is full, in the socket buffers.
"""

from __future__ import annotations

import asyncio

from kpybroker.call import Reply
from kpybroker.server.connections.accepted import Accepted


class Pause(Reply):
    """A pause of one connection. It begins when this object is created and ends some time after `start`."""

    __slots__ = ("_pauses", "_timer")

    def __init__(self, pauses: Pauses) -> None:
        super().__init__()
        self._pauses = pauses
        self._timer: asyncio.TimerHandle | None = None

    def start(self, wait_ms: int) -> None:
        """End the pause after this time."""
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
    """The pauses of all connections of a server. Each connection has only a few of them."""

    def __init__(self) -> None:
        self.open: set[Pause] = set()
        self._stopped = False

    def begin(self, connection: Accepted) -> Pause:
        """Run no further requests of this connection until the pause ends."""
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
        """End every pause, and begin no more, because the server is stopping."""
        self._stopped = True
        self.end_all()
