"""Requests that ask for many things: others of this broker have their turns meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

from kpybroker.errors import MalformedFrame

T = TypeVar("T")

ENTRIES_A_TURN = 100
"""So many are looked at before others have their turn: about a millisecond."""
ENTRIES_MAX = 100_000
"""Of one request: what they are answered with is encoded in one go."""


class Turns:
    """The entries of one request, in all its lists together."""

    def __init__(self) -> None:
        self._seen = 0

    async def over(self, asked: Iterable[T]) -> AsyncIterator[T]:
        """What is asked, one by one; waits for others now and then. Raises MalformedFrame where there are too many."""
        for each in asked:
            self._seen += 1
            if self._seen > ENTRIES_MAX:
                raise MalformedFrame(f"more than {ENTRIES_MAX} entries in one request")
            if self._seen % ENTRIES_A_TURN == 0:
                await asyncio.sleep(0)
            yield each
