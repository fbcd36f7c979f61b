"""Requests with many entries, handled over several turns of the loop, so that the broker serves other requests in
between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kpybroker.errors import MalformedFrame
from kpybroker.long_work import LongWork

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.controller.commands import Command

T = TypeVar("T")

ENTRIES_A_TURN = 100
"""Entries that are handled in one turn: about a millisecond."""
ENTRIES_MAX = 100_000
"""The most entries of one request."""


SLICE = 250
"""The most entries that a machine decides on in one step."""


def slices(asked: Sequence[T], size: int = SLICE) -> Iterator[Sequence[T]]:
    """The entries in pieces of at most `size`; one empty piece if there are none."""
    yield asked[:size]
    for at in range(size, len(asked), size):
        yield asked[at : at + size]


Indexes = tuple[str, tuple[int, ...]]
"""A topic and some of its partitions."""


def partitions_in_slices(asked: Iterable[tuple[str, Sequence[int]]]) -> Iterator[tuple[Indexes, ...]]:
    """Topics with partitions in pieces of SLICE partitions; a topic without any counts as one. At least one piece."""
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
    """The controller's answer to each entry, SLICE entries in one step. Raises KafkaError, also midway."""
    told: list[Any] = []
    for number, piece in enumerate(slices(asked)):
        if number:
            await broker.long_work.turn()
        told += await broker.controller.ask(command(tuple(piece)), timeout_ms)
    return told


async def at_most_twice(turns: Turns, asked: Sequence[T], name: Callable[[T], Hashable]) -> list[T]:
    """Put entries of the same name side by side, at most two of them: a machine refuses a name that occurs twice."""
    named: dict[Hashable, list[T]] = {}
    async for each in turns.through(asked):
        alike = named.setdefault(name(each), [])
        if len(alike) < 2:
            alike.append(each)
    twice = [each for alike in named.values() if len(alike) == 2 for each in alike]
    return twice + [alike[0] for alike in named.values() if len(alike) == 1]


class Turns:
    """The turns of one request; counts the entries of all its lists together."""

    def __init__(self, work: LongWork) -> None:
        self._work = work
        self._seen = 0
        self._since_turn = 0
        self._named: set[Hashable] = set()

    def add(self, count: int) -> None:
        """The answer to the current entry has `count` elements."""
        self._since_turn += count

    async def through(self, there: Iterable[T]) -> AsyncIterator[T]:
        """Yield each element of `there`, without a limit; gives way to other requests from time to time."""
        for each in there:
            self._since_turn += 1
            if self._since_turn >= ENTRIES_A_TURN:
                await self.turn()
            yield each

    async def turn(self) -> None:
        """Let the loop serve other requests now."""
        self._since_turn = 0
        await self._work.turn()

    async def over(self, asked: Iterable[T], name: Callable[[T], Hashable] | None = None) -> AsyncIterator[T]:
        """Yield each element of `asked`; gives way to other requests from time to time. Raises MalformedFrame if there
        are too many.

        With `name`, entries whose name occurred before in this request are left out. Kafka answers a name as often as
        it occurs, so a small request could ask for more than fits into memory; Kafka's own clients name each thing
        once.
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
