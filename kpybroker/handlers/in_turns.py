"""Requests that ask for many things: others of this broker have their turns meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from typing import TypeVar

from kpybroker.errors import MalformedFrame
from kpybroker.long_work import LongWork

T = TypeVar("T")

ENTRIES_A_TURN = 100
"""So many are looked at, or answered with, before others have their turn: about a millisecond."""
ENTRIES_MAX = 100_000
"""Of one request."""


class Turns:
    """The entries of one request, in all its lists together."""

    def __init__(self, work: LongWork) -> None:
        self._work = work
        self._seen = 0
        self._since_turn = 0
        self._named: set[Hashable] = set()

    def add(self, count: int) -> None:
        """One entry is answered with that many things."""
        self._since_turn += count

    async def turn(self) -> None:
        """Let others have their turn now."""
        self._since_turn = 0
        await self._work.turn()

    async def over(self, asked: Iterable[T], name: Callable[[T], Hashable] | None = None) -> AsyncIterator[T]:
        """What is asked, one by one; waits for others now and then. Raises MalformedFrame where there are too many.

        With `name`, what has a name that was there before in this request is left out: Kafka answers a name as often as
        it stands there, so that a small request may want more than fits into memory. Its own clients name things once.
        """
        for each in asked:
            self._seen += 1
            if self._seen > ENTRIES_MAX:
                raise MalformedFrame(f"more than {ENTRIES_MAX} entries in one request")
            self._since_turn += 1
            if self._since_turn >= ENTRIES_A_TURN:
                await self.turn()
            if name is not None:
                if name(each) in self._named:
                    continue
                self._named.add(name(each))
            yield each
