"""Measures how long requests of each API take, from the frame to the encoding of the response, including waits.

This runs only if metrics are served. Only one request in `EVERY` is measured; the cost of the others is one decrement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final

from kpybroker.call import Reply
from kpybroker.server.connections.connection import Connection
from kpybroker.server.connections.port import Dispatch, Encode
from kpybroker.wire import api as api_table
from kpybroker.world.stopwatch import perf_counter

EVERY: Final = 17
"""A prime number, so that each kind of request is measured even if a client alternates between several kinds."""
OPEN_MAX: Final = 256
"""The maximum number of tracked replies. At the limit all are dropped, because their clients may have disconnected."""
_KEY: Final = Struct(">h").unpack_from

Observe = Callable[[str, float], None]
"""Called with an API and the seconds that one request took."""


class Timing:
    """The interceptor that measures requests. It is installed only if metrics are served."""

    is_active = True
    _inner_dispatch: Dispatch
    _inner_encode: Encode

    def __init__(self, observe: Observe) -> None:
        self._observe = observe
        self._left = EVERY
        self._open: dict[Reply, tuple[str, float]] = {}

    def around(self, dispatch: Dispatch, encode: Encode) -> tuple[Dispatch, Encode]:
        """Measure some of the requests."""
        self._inner_dispatch, self._inner_encode = dispatch, encode
        return self._dispatch, self._encode

    def _dispatch(self, connection: Connection, frame: memoryview) -> None:
        self._left -= 1
        if self._left:
            self._inner_dispatch(connection, frame)
        else:
            self._left = EVERY
            self._time(connection, frame)

    def _encode(self, reply: Reply) -> Sequence[Any]:
        if self._open and (began := self._open.pop(reply, None)) is not None:
            self._observe(began[0], perf_counter() - began[1])
        return self._inner_encode(reply)

    def _time(self, connection: Connection, frame: memoryview) -> None:
        before, began = connection.last_reply, perf_counter()
        api = api_table.by_key.get(_KEY(frame)[0])
        self._inner_dispatch(connection, frame)
        reply = connection.last_reply
        if api is None or reply is before:
            return
        if isinstance(reply, Reply):
            if len(self._open) >= OPEN_MAX:
                self._open.clear()
            self._open[reply] = api.name, began
        else:
            self._observe(api.name, perf_counter() - began)
