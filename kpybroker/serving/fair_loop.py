"""Requests that ask for many things: others of this broker have their turns meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kpybroker.errors import MalformedFrame
from kpybroker.long_work import LongWork

if TYPE_CHECKING:
    from kpybroker.broker import Broker
    from kpybroker.controller.commands import Command

T = TypeVar("T")

ENTRIES_A_TURN = 100
"""So many are looked at, or answered with, before others have their turn: about a millisecond."""
ENTRIES_MAX = 100_000
"""Of one request."""


SLICE = 250
"""So many entries a machine decides on in one step, where a request has more."""


def slices(asked: Sequence[T], size: int = SLICE) -> Iterator[Sequence[T]]:
    """What is asked in pieces of at most `size` entries; one piece, where nothing is asked."""
    yield asked[:size]
    for at in range(size, len(asked), size):
        yield asked[at : at + size]


Indexes = tuple[str, tuple[int, ...]]
"""A topic and partitions of it."""


def partitions_in_slices(asked: Iterable[tuple[str, Sequence[int]]]) -> Iterator[tuple[Indexes, ...]]:
    """Topics with partitions in pieces of SLICE partitions, a topic without any counted as one; at least one piece."""
    piece: list[Indexes] = []
    room = SLICE
    is_first = True
    for topic, indexes in asked:
        at = 0
        while True:
            some = tuple(indexes[at : at + room])
            piece.append((topic, some))
            at += len(some)
            room -= len(some) or 1
            if room <= 0:
                yield tuple(piece)
                piece, room, is_first = [], SLICE, False
            if at >= len(indexes):
                break
    if piece or is_first:
        yield tuple(piece)


async def decided(
    broker: Broker, asked: Sequence[T], command: Callable[[tuple[T, ...]], Command], timeout_ms: int
) -> list[Any]:
    """What the controller answers to each entry; of many, SLICE in one step. Raises KafkaError, also midway."""
    told: list[Any] = []
    for number, piece in enumerate(slices(asked)):
        if number:
            await broker.long_work.turn()
        told += await broker.controller.ask(command(tuple(piece)), timeout_ms)
    return told


async def at_most_twice(turns: Turns, asked: Sequence[T], name: Callable[[T], Hashable]) -> list[T]:
    """Entries of one name side by side, and no more than two of them: a machine refuses the name for that."""
    named: dict[Hashable, list[T]] = {}
    async for each in turns.through(asked):
        alike = named.setdefault(name(each), [])
        if len(alike) < 2:
            alike.append(each)
    twice = [each for alike in named.values() if len(alike) == 2 for each in alike]
    return twice + [alike[0] for alike in named.values() if len(alike) == 1]


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

    async def through(self, there: Iterable[T]) -> AsyncIterator[T]:
        """What is there, one by one, however much it is; waits for others now and then."""
        for each in there:
            self._since_turn += 1
            if self._since_turn >= ENTRIES_A_TURN:
                await self.turn()
            yield each

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
