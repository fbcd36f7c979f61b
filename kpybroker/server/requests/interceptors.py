"""What stands around dispatch and encoding: an ordered list, the first outermost. Inactive ones cost nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kpybroker.server.connections.port import Dispatch, Encode


class Interceptor(Protocol):
    """Stands before every frame's dispatch and every reply's encoding while it is active."""

    @property
    def is_active(self) -> bool:
        """Whether anything is to be done for requests."""

    def around(self, dispatch: Dispatch, encode: Encode) -> tuple[Dispatch, Encode]:
        """What to call in the place of these."""


class Interceptors:
    """Puts the active ones between a server's connections and its dispatcher. `serve` gets what to call."""

    def __init__(self, dispatch: Dispatch, encode: Encode, serve: Callable[[Dispatch, Encode], None]) -> None:
        self._inner = dispatch, encode
        self._serve = serve
        self._interceptors: list[Interceptor] = []
        self.follow()

    def add(self, interceptor: Interceptor) -> None:
        """Inside all that were added before."""
        self._interceptors.append(interceptor)
        self.follow()

    def add_outermost(self, interceptor: Interceptor) -> None:
        """Around all others."""
        self._interceptors.insert(0, interceptor)
        self.follow()

    def follow(self) -> None:
        """One has become active, or no longer is."""
        dispatch, encode = self._inner
        for interceptor in reversed(self._interceptors):
            if interceptor.is_active:
                dispatch, encode = interceptor.around(dispatch, encode)
        self._serve(dispatch, encode)
