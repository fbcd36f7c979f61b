"""Interceptors that wrap dispatch and encoding, in order, with the first one outermost. Inactive ones have no cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kpybroker.server.connections.port import Dispatch, Encode


class Interceptor(Protocol):
    """Wraps every dispatch of a frame and every encoding of a reply while it is active."""

    @property
    def is_active(self) -> bool:
        """Whether this interceptor wraps requests at present."""

    def around(self, dispatch: Dispatch, encode: Encode) -> tuple[Dispatch, Encode]:
        """The two functions, wrapped by this interceptor."""


class Interceptors:
    """Puts the active interceptors between the connections and the dispatcher, by passing wrapped functions to
    `serve`."""

    def __init__(self, dispatch: Dispatch, encode: Encode, serve: Callable[[Dispatch, Encode], None]) -> None:
        self._inner = dispatch, encode
        self._serve = serve
        self._interceptors: list[Interceptor] = []
        self.follow()

    def add(self, interceptor: Interceptor) -> None:
        """Add an interceptor inside all others."""
        self._interceptors.append(interceptor)
        self.follow()

    def add_outermost(self, interceptor: Interceptor) -> None:
        """Add an interceptor around all others."""
        self._interceptors.insert(0, interceptor)
        self.follow()

    def follow(self) -> None:
        """Wrap the functions again. Called when an interceptor has become active or inactive."""
        dispatch, encode = self._inner
        for interceptor in reversed(self._interceptors):
            if interceptor.is_active:
                dispatch, encode = interceptor.around(dispatch, encode)
        self._serve(dispatch, encode)
