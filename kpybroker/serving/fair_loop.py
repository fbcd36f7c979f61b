"""Splits the handling of requests with many entries into turns of the event loop, so that other requests are served in
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
"""How many entries are handled in one turn of the event loop, which takes about a millisecond."""
ENTRIES_MAX = 100_000
"""The maximum number of entries of one request."""


SLICE = 250
"""The maximum number of entries in one command to a state machine."""


def slices(asked: Sequence[T], size: int = SLICE) -> Iterator[Sequence[T]]:
    """Split entries into slices of at most `size`. Without entries, yield one empty slice."""
    yield asked[:size]
    for at in range(size, len(asked), size):
        yield asked[at : at + size]


Indexes = tuple[str, tuple[int, ...]]
"""A topic and some of its partitions."""


def partitions_in_slices(asked: Iterable[tuple[str, Sequence[int]]]) -> Iterator[tuple[Indexes, ...]]:
    """Split topics into slices of SLICE partitions. A topic without partitions counts as one partition. Yield at least
    one slice."""
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
    """The controller's result for each entry. Each command to the controller has at most SLICE entries. If one of them
    raises KafkaError, earlier ones have already been executed."""
    told: list[Any] = []
    for number, piece in enumerate(slices(asked)):
        if number:
            await broker.long_work.turn()
        told += await broker.controller.ask(command(tuple(piece)), timeout_ms)
    return told


async def at_most_twice(turns: Turns, asked: Sequence[T], name: Callable[[T], Hashable]) -> list[T]:
    """Group entries with the same name, and keep at most two of each: two are enough for the state machine to refuse
    the name as a duplicate."""
    named: dict[Hashable, list[T]] = {}
    async for each in turns.through(asked):
        alike = named.setdefault(name(each), [])
        if len(alike) < 2:
            alike.append(each)
    twice = [each for alike in named.values() if len(alike) == 2 for each in alike]
    return twice + [alike[0] for alike in named.values() if len(alike) == 1]


class Turns:
    """The turns of one request. The entries of all its lists are counted together."""

    def __init__(self, work: LongWork) -> None:
        self._work = work
        self._seen = 0
        self._since_turn = 0
        self._named: set[Hashable] = set()

    def add(self, count: int) -> None:
        """Count `count` elements in the response to the current entry."""
        self._since_turn += count

    async def through(self, there: Iterable[T]) -> AsyncIterator[T]:
        """Yield each element of `there`, and let other requests run from time to time. There is no limit on the
        elements."""
        for each in there:
            self._since_turn += 1
            if self._since_turn >= ENTRIES_A_TURN:
                await self.turn()
            yield each

    async def turn(self) -> None:
        """Let the event loop serve other requests now."""
        self._since_turn = 0
        await self._work.turn()

    async def over(self, asked: Iterable[T], name: Callable[[T], Hashable] | None = None) -> AsyncIterator[T]:
        """Yield each element of `asked`, and let other requests run from time to time.

        With `name`, entries with a name that has already occurred in this request are skipped. Kafka returns a row for
        each repetition, so the response to a small request could be larger than the memory. Kafka's own clients do not
        repeat names. Raises MalformedFrame if there are too many elements.
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
